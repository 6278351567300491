"""Scalars of the public functions: checked once, with the name of the argument in the message."""

from __future__ import annotations

import math
import numbers
import operator

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
