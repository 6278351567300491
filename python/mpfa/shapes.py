"""Shapes that follow from those of q."""

from __future__ import annotations

from mpfa import _core


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
