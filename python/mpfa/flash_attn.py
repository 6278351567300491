"""The functions of the FlashAttention Python API, on the CPU and with low-bit recipes.

Arguments and their order are those of FlashAttention 2 (arXiv 2307.08691); arguments that version 3 added
are taken by keyword. Masks are bottom-right aligned. What cannot be honoured raises MpfaError; hints about
scheduling (num_splits, pack_gqa, sm_margin, deterministic, max_seqlen_*) change no result and are ignored.
"""

from __future__ import annotations

from mpfa import _core
from mpfa.arguments import text
from mpfa.arrays import kind_of, require_float
from mpfa.attention import attend_tensors
from mpfa.flash_arguments import call_options, output, resolve
from mpfa.flash_kvcache import attend_in_place, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_FORMATS = {"float32": "f32", "bfloat16": "bf16", "float16": "fp16"}


def _recipe_of(call: str, recipe: str | None, *tensors) -> str:
    """The given recipe, or operands in the dtypes they have and exact probabilities."""
    if recipe is not None:
        return text(recipe, "recipe")
    q, k, v = (_FORMATS[require_float(kind_of(x, n).dtype(x), f"{call}: {n}")] for x, n in zip(tensors, "qkv"))
    return f"q={q},k={k},v={v},p=f32"


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    *,
    recipe: str | None = None,
    sinks=None,
    return_softmax_lse=False,
    **others,
):
    """q [b, sq, hq, d], k [b, sk, hkv, d], v [b, sk, hkv, dv] -> out [b, sq, hq, dv].

    recipe: None computes with the operands as they are; "fp8", "mxfp4", ... round them first. return_softmax_lse
    gives (out, lse [b, hq, sq]), return_attn_probs (out, lse, None).
    """
    a = resolve(
        "flash_attn_func",
        others,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        softcap=softcap,
        sinks=sinks,
        return_softmax_lse=return_softmax_lse,
    )
    options = call_options(a, causal=causal, window=window_size, alibi_slopes=alibi_slopes)
    result = attend_tensors(q, k, v, _recipe_of("flash_attn_func", recipe, q, k, v), options, True)
    return output(result, a["return_softmax_lse"], return_attn_probs)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q=None,
    max_seqlen_k=None,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
    *,
    recipe: str | None = None,
    sinks=None,
    return_softmax_lse=False,
    **others,
):
    """q [total_q, hq, d], k [total_k, hkv, d], v [total_k, hkv, dv] -> out [total_q, hq, dv]; lse [hq, total_q].

    With block_table [b, pages] k and v are [num_pages, page_size, hkv, d], read in place.
    """
    a = resolve(
        "flash_attn_varlen_func",
        others,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        softcap=softcap,
        sinks=sinks,
        block_table=block_table,
        return_softmax_lse=return_softmax_lse,
    )
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise _core.MpfaError("flash_attn_varlen_func: cu_seqlens_q and cu_seqlens_k [b + 1] are needed")
    options = call_options(
        a, causal=causal, window=window_size, alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q
    )
    if a["block_table"] is not None:
        offsets = _core.integers(cu_seqlens_k, "cu_seqlens_k")
        lengths = [end - begin for begin, end in zip(offsets, offsets[1:])]
        result = attend_in_place(
            q, k, v, lengths=lengths, block_table=a["block_table"], recipe=recipe, options=options
        )
    else:
        recipe = _recipe_of("flash_attn_varlen_func", recipe, q, k, v)
        result = attend_tensors(q, k, v, recipe, options, True, cu_seqlens_k)
    return output(result, a["return_softmax_lse"], return_attn_probs)
