"""Operators for torch.compile: torch.ops.mpfa.attend and torch.ops.mpfa.attend_with_kvcache.

Importing this module imports torch and registers the operators with their shape functions, so that
`torch.compile(fullgraph=True)` traces through them. Both run on the CPU and have no gradient.

    from mpfa import torch_ops
    out, lse = torch_ops.attend(q, k, v, recipe="mxfp4", causal=True)
    out, lse = torch_ops.attend_with_kvcache(q, k_cache, v_cache, cache_seqlens, k_new, v_new, causal=True)
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

import mpfa


def _lse_like(q: Tensor) -> Tensor:
    shape = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0])
    return q.new_empty(shape, dtype=torch.float32)


def _with_window(name: str, arguments: dict) -> dict:
    """Arguments of an operator, whose schema has no pairs, as the function beside it takes them."""
    window = arguments.pop("window_left"), arguments.pop("window_right")
    return {**arguments, name: window}


@torch.library.custom_op("mpfa::attend", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: str,
    causal: bool,
    window_left: int,
    window_right: int,
    softmax_scale: Optional[float],
    softcap: float,
    sinks: Optional[Tensor],
    mask: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
    cu_seqlens_q: Optional[Tensor],
    cu_seqlens_k: Optional[Tensor],
) -> tuple[Tensor, Tensor]:
    return mpfa.attend(**_with_window("window", locals()), return_lse=True)


@_attend.register_fake
def _(q, k, v, *options):
    return q.new_empty((*q.shape[:-1], v.shape[-1])), _lse_like(q)


@torch.library.custom_op("mpfa::attend_with_kvcache", mutates_args=("k_cache", "v_cache"))
def _attend_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    rotary_cos: Optional[Tensor],
    rotary_sin: Optional[Tensor],
    block_table: Optional[Tensor],
    rotary_interleaved: bool,
    causal: bool,
    window_left: int,
    window_right: int,
    softmax_scale: Optional[float],
    softcap: float,
    sinks: Optional[Tensor],
    alibi_slopes: Optional[Tensor],
) -> tuple[Tensor, Tensor]:
    return mpfa.flash_attn_with_kvcache(**_with_window("window_size", locals()), return_softmax_lse=True)


@_attend_with_kvcache.register_fake
def _(q, k_cache, v_cache, *options):
    return q.new_empty((*q.shape[:-1], v_cache.shape[-1])), _lse_like(q)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    recipe: str = "mxfp4",
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`mpfa.attend` as an operator: (out, lse). Shapes as there; optional inputs are tensors."""
    return torch.ops.mpfa.attend(
        q, k, v, recipe, causal, *window, softmax_scale, softcap, sinks, mask, alibi_slopes, cu_seqlens_q, cu_seqlens_k
    )


def attend_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    block_table: Tensor | None = None,
    rotary_interleaved: bool = True,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`mpfa.flash_attn_with_kvcache` over plain caches as an operator: (out, lse).

    k and v are written into the caches in place; the schema says so, and compiled graphs keep the order.
    """
    return torch.ops.mpfa.attend_with_kvcache(
        q,
        k_cache,
        v_cache,
        cache_seqlens,
        k,
        v,
        rotary_cos,
        rotary_sin,
        block_table,
        rotary_interleaved,
        causal,
        *window,
        softmax_scale,
        softcap,
        sinks,
        alibi_slopes,
    )
