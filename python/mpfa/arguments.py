"""Scalars of the public functions: checked once, with the name of the argument in the message."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, TypedDict

from mpfa import _core
from mpfa.arrays import plain

_LARGEST = 2**62


def integer(x, name: str, least: int | None = None) -> int:
    """x as an int of at least `least`; floats and bools are refused."""
    if type(x) is int and (least is None or x >= least) and -_LARGEST < x < _LARGEST:
        return x
    try:
        if isinstance(x, bool):
            raise TypeError
        value = operator.index(x)
    except TypeError:
        raise _core.MpfaError(f"{name} is {x!r}; an integer is needed") from None
    if (least is not None and value < least) or abs(value) > _LARGEST:
        raise _core.MpfaError(f"{name} is {value}; an integer of at least {least} is needed")
    return value


def number(x, name: str) -> float:
    """x as a finite float that fits float32."""
    if type(x) is float and -3e38 < x < 3e38:
        return x
    if isinstance(x, bool) or not (isinstance(x, numbers.Real) or hasattr(x, "__float__")):
        raise _core.MpfaError(f"{name} is {x!r}; a number is needed")
    try:
        value = float(x)
    except (TypeError, ValueError, RuntimeError):
        raise _core.MpfaError(f"{name} is {x!r}; a single number is needed") from None
    if not math.isfinite(value) or abs(value) > 3e38:
        raise _core.MpfaError(f"{name} is {value}; a finite float32 is needed")
    return value


def flag(x, name: str) -> bool:
    """x as a bool; only True and False (0 and 1) are taken."""
    if x is True or x is False:
        return x
    if isinstance(x, numbers.Integral) and x in (0, 1):
        return bool(x)
    raise _core.MpfaError(f"{name} is {x!r}; True or False is needed")


def text(x, name: str) -> str:
    """x when it is a str."""
    if not isinstance(x, str):
        raise _core.MpfaError(f"{name} is a {type(x).__name__}; a str is needed")
    return x


def scale(x) -> float:
    """softmax_scale: None is 0 for the core, which stands for 1/sqrt(head_dim)."""
    if x is None:
        return 0.0
    value = number(x, "softmax_scale")
    if value <= 0:
        raise _core.MpfaError(f"softmax_scale is {value}; give a positive number, or None for 1/sqrt(head_dim)")
    return value


def window_sides(x) -> tuple[int, int]:
    """(left, right) number of keys before and after a row's position; -1 or None is unlimited."""
    if x is None:
        return -1, -1
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise _core.MpfaError(f"window is {x!r}; (left, right) is needed, with -1 or None for unlimited")
    left, right = (-1 if side is None else integer(side, "window", -1) for side in x)
    return left, right


class AttendOptions(TypedDict, total=False):
    """Options of every attention call, all of them optional.

    softmax_scale  positive; None is 1/sqrt(head_dim)
    window         (left, right): row at position p sees keys p - left .. p + right; -1 or None is unlimited
    softcap        > 0: logit = softcap * tanh(logit / softcap)
    sinks          [q_heads]: one more logit per head, without a value
    mask           bool (False = masked) or float32 (added): [s, keys] or [batch or 1, q_heads or 1, s, keys]
    alibi_slopes   [q_heads]: logit -= slope * |p - j|
    cu_seqlens_q   [batch + 1] offsets of ragged q [total, q_heads, head_dim]
    threads        of the CPU; 0 for all
    """

    softmax_scale: float | None
    window: tuple[int | None, int | None]
    softcap: float
    sinks: Any
    mask: Any
    alibi_slopes: Any
    cu_seqlens_q: Any
    threads: int


def core_options(
    *,
    softmax_scale=None,
    softcap=0.0,
    causal=False,
    window=(-1, -1),
    sinks=None,
    mask=None,
    alibi_slopes=None,
    cu_seqlens_q=None,
    threads=0,
) -> tuple:
    """The checked options of an attention call, the one argument in which the extension takes them."""
    left, right = window_sides(window)
    return (
        scale(softmax_scale),
        0.0 if softcap is None else number(softcap, "softcap"),
        flag(causal, "causal"),
        left,
        right,
        None if sinks is None else plain(sinks, "sinks"),
        None if mask is None else plain(mask, "mask"),
        None if alibi_slopes is None else plain(alibi_slopes, "alibi_slopes"),
        cu_seqlens_q,
        integer(threads, "threads", 0),
    )


class ProblemFields(TypedDict, total=False):
    """What a call asks for beside recipe, device and the shape of the cache, all of it optional.

    batch            1
    max_q            1: most query rows of a sequence
    total_q          ragged q: most rows in all; 0: batch * max_q
    max_kv           1024: most keys of a sequence
    q_dtype          "float32", "bfloat16", "float16"; out_dtype likewise, None: q_dtype
    causal           False; window, softmax_scale and softcap as in `AttendOptions`
    sinks, alibi     whether a call brings them
    mask             "none", "boolean" or "additive"
    batch_invariant  GPU: the bits of a row do not depend on the rest of the batch (the CPU is always so)
    """

    batch: int
    max_q: int
    total_q: int
    max_kv: int
    q_dtype: str
    out_dtype: str | None
    causal: bool
    window: tuple[int | None, int | None]
    softmax_scale: float | None
    softcap: float
    sinks: bool
    alibi: bool
    mask: str
    batch_invariant: bool


def problem_fields(
    recipe: str,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    head_dim_v: int | None,
    page_size: int,
    *,
    batch=1,
    max_q=1,
    total_q=0,
    max_kv=1024,
    q_dtype="float32",
    out_dtype=None,
    causal=False,
    window=(-1, -1),
    softmax_scale=None,
    softcap=0.0,
    sinks=False,
    alibi=False,
    mask="none",
    batch_invariant=False,
) -> tuple:
    """The checked fields of an attention problem, in the order of the extension."""
    left, right = window_sides(window)
    return (
        text(recipe, "recipe"),
        integer(batch, "batch"),
        integer(max_q, "max_q"),
        integer(total_q, "total_q"),
        integer(max_kv, "max_kv"),
        integer(q_heads, "q_heads"),
        integer(kv_heads, "kv_heads"),
        integer(head_dim, "head_dim"),
        integer(head_dim if head_dim_v is None else head_dim_v, "head_dim_v"),
        integer(page_size, "page_size"),
        text(q_dtype, "q_dtype"),
        text(q_dtype if out_dtype is None else out_dtype, "out_dtype"),
        scale(softmax_scale),
        number(softcap, "softcap"),
        flag(causal, "causal"),
        left,
        right,
        flag(sinks, "sinks"),
        flag(alibi, "alibi"),
        text(mask, "mask"),
        flag(batch_invariant, "batch_invariant"),
    )
