"""Rotary position embedding as an argument of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpfa import _core
from mpfa.arguments import flag, integer
from mpfa.arrays import kind_of, plain, require_float


@dataclass(frozen=True, eq=False)
class Rope:
    """Tables that keys (and queries) are rotated with.

    cos, sin     [positions, half], float32, bfloat16 or float16: row p turns by p times the frequencies
    interleaved  channels (2i, 2i+1) turn together, as in GPT-J; else (i, i + half), as in GPT-NeoX and Llama
    begin        first channel that turns; those before it and from begin + 2 * half on stay as they are
    """

    cos: Any
    sin: Any
    interleaved: bool = False
    begin: int = 0

    def core(self, positions=None, q=None, q_out=None, q_positions=None) -> tuple:
        """What the extension takes."""
        return (
            plain(self.cos, "rope.cos"),
            plain(self.sin, "rope.sin"),
            flag(self.interleaved, "rope.interleaved"),
            integer(self.begin, "rope.begin", 0),
            positions,
            q,
            q_out,
            q_positions,
        )


def tables_of(rope) -> tuple:
    """What the extension takes of a `Rope` alone."""
    if not isinstance(rope, Rope):
        raise _core.MpfaError(f"rope is a {type(rope).__name__}; an mpfa.Rope is needed")
    return rope.core()


def rotation(rope, positions, rotate_q, q_positions, empty=None):
    """(gives the rotated q after the call, what the extension takes) of the arguments of append and write_slots.

    empty(q, name, shape, dtype) makes the rotated q where it is not of the host.
    """
    if rope is None:
        if positions is not None or rotate_q is not None or q_positions is not None:
            raise _core.MpfaError(
                "positions, rotate_q and q_positions belong to rope; give an mpfa.Rope or none of them"
            )
        return lambda: None, None
    tables_of(rope)
    if rotate_q is None:
        if q_positions is not None:
            raise _core.MpfaError("q_positions belong to rotate_q; give both or neither")
        return lambda: None, rope.core(positions)
    kind = kind_of(rotate_q, "rotate_q")
    shape, dtype = kind.shape(rotate_q), require_float(kind.dtype(rotate_q), "rotate_q")
    if empty is not None:
        out = empty(rotate_q, "rotate_q", shape, dtype)
        return lambda: out, rope.core(positions, plain(rotate_q, "rotate_q"), out, q_positions)
    out = kind.empty(shape, dtype)
    return lambda: kind.result(out), rope.core(positions, plain(rotate_q, "rotate_q"), out, q_positions)
