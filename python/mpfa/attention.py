"""Attention over plain tensors, support queries, and merging of partial results."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpfa import _core
from mpfa.arguments import core_options, flag, integer, number, scale, text, window_sides
from mpfa.arrays import kind_of, plain, require_float, shape_of
from mpfa.cache import attend_core, lse_shape
from mpfa.page_view import PageView


def attend(
    q,
    k,
    v=None,
    *,
    recipe: str | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks=None,
    mask=None,
    alibi_slopes=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    k_mean=None,
    q_mean=None,
    v_mean=None,
    k_scale=None,
    v_scale=None,
    return_lse: bool = False,
    threads: int = 0,
):
    """Attention with the operands rounded as `recipe` says (None: "mxfp4"); what a cache would give, in one call.

    q [b, sq, q_heads, d], k [b, sk, kv_heads, d], v [b, sk, kv_heads, d_v], or ragged [total, heads, d] with
    cu_seqlens_q / cu_seqlens_k [b + 1] (int32 or int64). float32, bfloat16 or float16. Recipes with a 16-bit
    phase are sealed first: the operands are quantised. Other arguments and the result as in
    `PagedCache.attend`; k_mean ... v_scale as in `PagedCache`.

    attend(q, view) with a `PageView` (v None) reads the pages of the caller instead; the view knows the recipe.
    """
    options = core_options(
        softmax_scale=softmax_scale,
        softcap=softcap,
        causal=causal,
        window=window,
        sinks=sinks,
        mask=mask,
        alibi_slopes=alibi_slopes,
        cu_seqlens_q=cu_seqlens_q,
        threads=threads,
    )
    calibrated = {"k_mean": k_mean, "q_mean": q_mean, "v_mean": v_mean, "k_scale": k_scale, "v_scale": v_scale}
    if isinstance(k, PageView):
        given = {"v": v, "recipe": recipe, "cu_seqlens_k": cu_seqlens_k, **calibrated}
        for name, value in given.items():
            if value is not None:
                raise _core.MpfaError(f"attend: {name} has no meaning beside a PageView; leave it out")
        return attend_core(k._core, q, k._head_dim_v, options, return_lse)
    plain_values = [None if x is None else plain(x, name) for name, x in calibrated.items()]
    recipe = "mxfp4" if recipe is None else text(recipe, "recipe")
    return attend_tensors(q, k, v, recipe, options, return_lse, cu_seqlens_k, plain_values)


def attend_tensors(q, k, v, recipe: str, options: tuple, return_lse: bool, cu_seqlens_k=None, calibrated=(None,) * 5):
    """`attend` over plain tensors; `options` are those of `core_options`, `calibrated` k_mean ... v_scale."""
    kind = kind_of(q, "q")
    shape = kind.shape(q)
    v_shape = shape_of(v, "v", 3, 4)
    lse_of_q = lse_shape(shape)
    out = kind.empty((*shape[:-1], v_shape[-1]), require_float(kind.dtype(q), "q"))
    lse = kind.empty(lse_of_q, "float32") if return_lse else None
    _core.attend(
        recipe,
        plain(q, "q"),
        plain(k, "k"),
        plain(v, "v"),
        out,
        lse,
        options,
        cu_seqlens_k,
        *calibrated,
    )
    return (kind.result(out), kind.result(lse)) if return_lse else kind.result(out)


def merge_states(o_a, lse_a, o_b, lse_b):
    """Attention over the union of two disjoint sets of keys from the results over each.

    o [b, s, heads, d] with lse [b, heads, s], or o [total, heads, d] with lse [heads, total]; float32, bfloat16
    or float16 (merged in float32). Returns (o, lse) in float32. lse = -inf is the identity, bit for bit.
    """
    kind = kind_of(o_a, "o_a")
    shape = shape_of(o_a, "o_a", 3, 4)
    o = kind.empty(shape, "float32")
    lse = kind.empty(lse_shape(shape), "float32")
    _core.merge(plain(o_a, "o_a"), plain(lse_a, "lse_a"), plain(o_b, "o_b"), plain(lse_b, "lse_b"), o, lse)
    return kind.result(o), kind.result(lse)


@dataclass(frozen=True)
class Support:
    """The kernel that would run ("" for none) or the reasons why none does; true when there is one."""

    kernel: str
    reasons: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.kernel)


def supports(
    recipe: str,
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    head_dim_v: int | None = None,
    page_size: int = 64,
    batch: int = 1,
    max_q: int = 1,
    max_kv: int = 1024,
    q_dtype: str = "float32",
    causal: bool = False,
    window: tuple[int | None, int | None] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: bool = False,
    alibi: bool = False,
    mask: str = "none",
    device: str = "cpu",
) -> Support:
    """Whether a kernel takes this problem on `device` ("cpu", "sm90", "sm100", "sm120"), without running it.

    mask is "none", "boolean" or "additive". An unknown recipe raises MpfaError.
    """
    left, right = window_sides(window)
    kernel, reasons = _core.supports(
        text(recipe, "recipe"),
        text(device, "device"),
        text(q_dtype, "q_dtype"),
        text(mask, "mask"),
        integer(batch, "batch"),
        integer(max_q, "max_q"),
        integer(max_kv, "max_kv"),
        integer(q_heads, "q_heads"),
        integer(kv_heads, "kv_heads"),
        integer(head_dim, "head_dim"),
        integer(head_dim if head_dim_v is None else head_dim_v, "head_dim_v"),
        integer(page_size, "page_size"),
        scale(softmax_scale),
        number(softcap, "softcap"),
        flag(causal, "causal"),
        left,
        right,
        flag(sinks, "sinks"),
        flag(alibi, "alibi"),
    )
    return Support(kernel, reasons)
