"""Rotary position embedding as an argument of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpfa.arguments import flag, integer
from mpfa.arrays import plain


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
