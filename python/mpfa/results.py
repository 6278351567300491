"""What an attention call gives back: arrays of the kind of q, in shapes that follow from its own."""

from __future__ import annotations

from mpfa import _core
from mpfa.arrays import kind_of, plain, require_float


def lse_shape(q_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the LSE for q [batch, s, heads, d] or [total, heads, d]."""
    if len(q_shape) == 4:
        return q_shape[0], q_shape[2], q_shape[1]
    if len(q_shape) == 3:
        return q_shape[1], q_shape[0]
    raise _core.MpfaError(
        f"q has shape {list(q_shape)}; [batch, rows, q_heads, head_dim] is needed, or [rows, q_heads, head_dim] "
        "with cu_seqlens_q"
    )


def attend_core(core, q, head_dim_v: int, options: tuple, return_lse: bool):
    """out, or (out, lse), of `core.attend`; `options` are those of `core_options`."""
    kind = kind_of(q, "q")
    shape = kind.shape(q)
    out = kind.empty((*shape[:-1], head_dim_v), require_float(kind.dtype(q), "q"))
    lse = kind.empty(lse_shape(shape), "float32") if return_lse else None
    core.attend(plain(q, "q"), out, lse, options)
    return (kind.result(out), kind.result(lse)) if return_lse else kind.result(out)
