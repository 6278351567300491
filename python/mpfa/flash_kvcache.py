"""flash_attn_with_kvcache: caches of the caller, appended to and read in place."""

from __future__ import annotations

from mpfa import _core
from mpfa.arguments import flag, integer
from mpfa.arrays import kind_of, plain, require_float, shape_of
from mpfa.cache import PagedCache
from mpfa.flash_arguments import call_options, output, resolve
from mpfa.page_view import PageView
from mpfa.results import attend_core, lse_shape
from mpfa.rope import Rope


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache=None,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
    *,
    recipe: str | None = None,
    sinks=None,
    cu_seqlens_q=None,
    **others,
):
    """Attention of q [b, s, hq, d] over a cache, after appending k, v [b, n, hkv, d] to it IN PLACE when given.

    k_cache, v_cache  plain tensors [rows, capacity, hkv, d], or [num_pages, page_size, hkv, d] with block_table
                      [b, pages] int32: read where they are, in their own dtype (float32, bfloat16, float16);
                      or k_cache an mpfa.PagedCache or mpfa.PageView (v_cache None), whose recipe counts; the latter
                      without k and v
    cache_seqlens     int or [b]: keys of each sequence before k and v; None: the whole cache
    cache_batch_idx   [b]: cache row of each sequence
    rotary_cos, _sin  [positions, rotary_dim / 2]: k is rotated at its position, q likewise when causal or in a
                      window, else at cache_seqlens; rotary_interleaved: pairs (2i, 2i+1), else (i, i + half)
    cu_seqlens_q      [b + 1]: q is ragged [total, hq, d] (only without k)

    Returns out, with return_softmax_lse also lse [b, hq, s].
    """
    a = resolve(
        "flash_attn_with_kvcache",
        others,
        cache_leftpad=cache_leftpad,
        softmax_scale=softmax_scale,
        softcap=softcap,
        sinks=sinks,
        block_table=block_table,
        return_softmax_lse=return_softmax_lse,
    )
    if (k is None) != (v is None):
        raise _core.MpfaError("flash_attn_with_kvcache: k and v belong together; give both or neither")
    if k is not None and cu_seqlens_q is not None:
        raise _core.MpfaError("flash_attn_with_kvcache: k and v cannot be appended with a ragged q; append them first")
    # Bad options are refused before anything is appended.
    options = call_options(
        a, causal=causal, window=window_size, alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q
    )
    packed = isinstance(k_cache, (PagedCache, PageView))
    what = type(k_cache).__name__
    lengths = _lengths(cache_seqlens, k_cache.batch if packed else _batch_of(q, cu_seqlens_q))
    if packed:
        if lengths is not None and tuple(lengths) != k_cache.lengths:
            raise _core.MpfaError(
                f"flash_attn_with_kvcache: cache_seqlens is {lengths}, the {what} holds {list(k_cache.lengths)} "
                "tokens; leave cache_seqlens out"
            )
        lengths = list(k_cache.lengths)
    elif k is not None and lengths is None:
        raise _core.MpfaError("flash_attn_with_kvcache: k was given without cache_seqlens; say where it goes")
    rope, local = None, True
    if rotary_cos is not None or rotary_sin is not None:
        if k is None or rotary_cos is None or rotary_sin is None:
            raise _core.MpfaError(
                "flash_attn_with_kvcache: rotary_cos, rotary_sin, k and v belong together; give all of them"
            )
        rope = Rope(rotary_cos, rotary_sin, flag(rotary_interleaved, "rotary_interleaved"))
        local = flag(causal, "causal") or tuple(window_size or (-1, -1)) not in {(-1, -1), (None, None)}
    if not packed:
        result = attend_in_place(
            q,
            k_cache,
            v_cache,
            k=k,
            v=v,
            lengths=lengths,
            block_table=a["block_table"],
            batch_index=cache_batch_idx,
            recipe=recipe,
            options=options,
            rope=rope,
            local=local,
        )
        return output(result, a["return_softmax_lse"])
    for name, value in (("v_cache", v_cache), ("block_table", a["block_table"]), ("cache_batch_idx", cache_batch_idx)):
        if value is not None:
            raise _core.MpfaError(f"flash_attn_with_kvcache: {name} has no meaning for a {what}; leave it None")
    if recipe is not None and _core.recipe_text(recipe) != k_cache.recipe:
        raise _core.MpfaError(
            f"flash_attn_with_kvcache: recipe is {recipe}, the {what} was made with {k_cache.recipe}; leave it None"
        )
    if k is not None and isinstance(k_cache, PageView):
        raise _core.MpfaError(
            "flash_attn_with_kvcache: k and v cannot be appended to a PageView, whose table and lengths are yours; "
            "use PageView.write_slots and set_table"
        )
    if k is not None:
        same_rows = shape_of(q, "q", 4)[:2] == shape_of(k, "k", 4)[:2]
        means_q = q if same_rows else None
        if rope is None:
            k_cache.append(k, v, q=means_q)
        else:
            at = [[n + (i if local else 0) for i in range(shape_of(q, "q", 4)[1])] for n in lengths]
            q = k_cache.append(k, v, q=means_q, rope=rope, rotate_q=q, q_positions=at)
    result = attend_core(k_cache._core, q, k_cache._head_dim_v, options, True)
    return output(result, a["return_softmax_lse"])


def _batch_of(q, cu_seqlens_q) -> int:
    if cu_seqlens_q is not None:
        return len(_core.integers(cu_seqlens_q, "cu_seqlens_q")) - 1
    return shape_of(q, "q", 4)[0]


def _lengths(cache_seqlens, batch: int):
    """One length per sequence, or None."""
    if cache_seqlens is None:
        return None
    if isinstance(cache_seqlens, (list, tuple)):
        return [integer(n, "cache_seqlens", 0) for n in cache_seqlens]
    if not getattr(cache_seqlens, "shape", ()):
        return [integer(cache_seqlens, "cache_seqlens", 0)] * batch
    kind_of(cache_seqlens, "cache_seqlens")
    return _core.integers(cache_seqlens, "cache_seqlens")


def attend_in_place(
    q,
    k_cache,
    v_cache,
    *,
    lengths,
    recipe,
    options,
    k=None,
    v=None,
    block_table=None,
    batch_index=None,
    rope: Rope | None = None,
    local: bool = True,
):
    """(out, lse) over plain caches; `options` are those of `core_options`, `lengths` one per sequence or None.

    With `rope`, k is rotated at its position, and q likewise when `local`, else at the length of its sequence.
    """
    if recipe is not None:
        raise _core.MpfaError(
            f"recipe is {recipe!r}, but plain caches are read in the dtype they have; use an mpfa.PagedCache for it"
        )
    kind = kind_of(q, "q")
    shape = kind.shape(q)
    v_shape = shape_of(v_cache, "v_cache", 4)
    lse = kind.empty(lse_shape(shape), "float32")
    out = kind.empty((*shape[:-1], v_shape[-1]), require_float(kind.dtype(q), "q"))
    turned, turn = plain(q, "q"), None
    if rope is not None:
        turned = kind.empty(shape, require_float(kind.dtype(q), "q"))
        turn = (plain(rope.cos, "rotary_cos"), plain(rope.sin, "rotary_sin"), rope.interleaved, local, plain(q, "q"))
    _core.attend_kvcache(
        turned,
        out,
        lse,
        options,
        plain(k_cache, "k_cache"),
        plain(v_cache, "v_cache"),
        None if k is None else plain(k, "k"),
        None if v is None else plain(v, "v"),
        lengths,
        block_table,
        batch_index,
        turn,
    )
    return kind.result(out), kind.result(lse)
