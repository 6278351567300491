"""Attention over plain tensors, support queries, and merging of partial results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Unpack

from mpfa import _core
from mpfa.arguments import AttendOptions, ProblemFields, core_options, problem_fields, text
from mpfa.arrays import kind_of, plain, require_float, shape_of
from mpfa.device_arrays import empty_beside, stream_address
from mpfa.device_view import DevicePageView
from mpfa.page_view import PageView
from mpfa.results import lse_shape


def attend(
    q,
    k,
    v=None,
    *,
    recipe: str | None = None,
    causal: bool = False,
    cu_seqlens_k=None,
    k_mean=None,
    q_mean=None,
    v_mean=None,
    k_scale=None,
    v_scale=None,
    return_lse: bool = False,
    **options: Unpack[AttendOptions],
):
    """Attention with the operands rounded as `recipe` says (None: "mxfp4"); what a cache would give, in one call.

    q [b, sq, q_heads, d], k [b, sk, kv_heads, d], v [b, sk, kv_heads, d_v], or ragged [total, heads, d] with
    cu_seqlens_q / cu_seqlens_k [b + 1] (int32 or int64). float32, bfloat16 or float16. Recipes with a 16-bit
    phase are sealed first: the operands are quantised. Options are those of `AttendOptions`, the result is that of
    `PagedCache.attend`; k_mean ... v_scale as in `PagedCache`.

    attend(q, view) with a `PageView` or a `DevicePageView` (v None) reads the pages of the caller instead; the view
    knows the recipe.
    """
    calibrated = {"k_mean": k_mean, "q_mean": q_mean, "v_mean": v_mean, "k_scale": k_scale, "v_scale": v_scale}
    if isinstance(k, (PageView, DevicePageView)):
        given = {"v": v, "recipe": recipe, "cu_seqlens_k": cu_seqlens_k, **calibrated}
        for name, value in given.items():
            if value is not None:
                raise _core.MpfaError(f"attend: {name} has no meaning beside a {type(k).__name__}; leave it out")
        return k.attend(q, causal=causal, return_lse=return_lse, **options)
    plain_values = [None if x is None else plain(x, name) for name, x in calibrated.items()]
    recipe = "mxfp4" if recipe is None else text(recipe, "recipe")
    core = core_options(causal=causal, **options)
    return attend_tensors(q, k, v, recipe, core, return_lse, cu_seqlens_k, plain_values)


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


def merge_states(o_a, lse_a, o_b, lse_b, *, out=None, lse=None, stream=None):
    """Attention over the union of two disjoint sets of keys from the results over each.

    o [b, s, heads, d] with lse [b, heads, s], or o [total, heads, d] with lse [heads, total]; float32, bfloat16
    or float16 (merged in float32). Returns (o, lse) in float32. lse = -inf is the identity, bit for bit.

    Results in device memory are merged there, in one launch on `stream` (as in `DevicePlan.attend`); o_a, o_b and out
    have dtypes of their own, and lse is float32. out and lse, on the device only, are what is written and returned (they
    may be o_a and lse_a); None: new torch tensors in float32.
    """
    kind = kind_of(o_a, "o_a")
    shape = shape_of(o_a, "o_a", 3, 4)
    if _core.on_device(plain(o_a, "o_a"), "o_a"):
        out = empty_beside(o_a, "out", shape, "float32") if out is None else out
        lse = empty_beside(o_a, "lse", lse_shape(shape), "float32") if lse is None else lse
        states = plain(o_a, "o_a"), plain(lse_a, "lse_a"), plain(o_b, "o_b"), plain(lse_b, "lse_b")
        _core.merge_on_device(*states, out, lse, stream_address(stream, o_a))
        return out, lse
    if out is not None or lse is not None or stream is not None:
        raise _core.MpfaError("merge_states: out, lse and stream are for results in device memory; leave them out")
    o, lse = kind.empty(shape, "float32"), kind.empty(lse_shape(shape), "float32")
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
    device: str = "cpu",
    **problem: Unpack[ProblemFields],
) -> Support:
    """Whether this build has a kernel for a problem (`ProblemFields`) on `device`, or every reason why not.

    device: "cpu", "sm90", "sm100", "sm120", which need not be there (`available` asks the machine), or "cuda", the kind
    of the current CUDA device. An unknown recipe raises MpfaError.
    """
    fields = problem_fields(recipe, q_heads, kv_heads, head_dim, head_dim_v, page_size, **problem)
    return Support(*_core.supports(fields, text(device, "device")))
