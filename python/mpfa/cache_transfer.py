"""Sequences of a PagedCache to pages in device memory and back, bit for bit."""

from __future__ import annotations

import numpy as np

from mpfa import _core
from mpfa.arguments import integer
from mpfa.device_arrays import to_device, to_host
from mpfa.device_view import DevicePageView
from mpfa.pages import Pages


def _means(cache) -> list[np.ndarray | None]:
    """k_mean and v_mean: [heads, d] when all sequences have the same, [batch, heads, d] otherwise, None without."""
    both = [np.empty((cache.batch, cache._kv_heads, d), np.float32) for d in (cache._head_dim, cache._head_dim_v)]
    present = cache._core.copy_means(*both)
    return [(x[0] if (x == x[:1]).all() else x) if there else None for x, there in zip(both, present)]


def move_to_device(cache, device, max_tokens: int | None) -> DevicePageView:
    """`PagedCache.to_device`."""
    if cache._shared_kv:
        raise _core.MpfaError("to_device: V is part of K in this cache (shared_kv), which no GPU kernel reads yet")
    heads = cache._kv_heads, cache._kv_heads
    shapes = zip(cache._core.formats(), heads, (cache._head_dim, cache._head_dim_v), cache._scales)
    k, v = (
        Pages.empty(cache.num_pages, cache._page_size, n, d, format=format, order="HND", scale=scale)
        for format, n, d, scale in shapes
    )
    rows = cache.page_table
    tokens = max(cache.lengths) if max_tokens is None else integer(max_tokens, "max_tokens", max(cache.lengths))
    table = np.full((cache.batch, max(-(-tokens // cache._page_size), 1)), -1, np.int32)
    has_state = cache._core.has_state()
    for sequence, pages in enumerate(rows):
        table[sequence, : len(pages)] = pages
        if pages:
            cache._core.export_pages(sequence, k._core, v._core, pages, has_state)
    k_mean, v_mean = (None, None) if has_state else (None if x is None else to_device(x, device) for x in _means(cache))
    return DevicePageView(
        k.to_device(device),
        v.to_device(device),
        page_table=to_device(table, device),
        lengths=to_device(np.array(cache.lengths, np.int64), device),
        recipe=cache.recipe,
        k_mean=k_mean,
        v_mean=v_mean,
        _state=cache._core.device_state(table.shape[1] * cache._page_size) if has_state else None,
    )


def take_from_device(cache, view: DevicePageView) -> None:
    """`PagedCache.from_device`."""
    if not isinstance(view, DevicePageView):
        raise _core.MpfaError(f"from_device: view is a {type(view).__name__}; an mpfa.DevicePageView is needed")
    if view._has_state:
        raise _core.MpfaError(
            f"from_device: the view has recipe {view.recipe}, whose sequences are more than pages; save and load them"
        )
    if view.batch != cache.batch or any(cache.lengths):
        raise _core.MpfaError(
            f"from_device: the view has {view.batch} sequences, the cache {cache.batch} with lengths "
            f"{list(cache.lengths)}; as many are needed, all of them empty"
        )
    k, v = view.k.to_host(), view.v.to_host()
    table, lengths = np.asarray(to_host(view.page_table)), np.asarray(to_host(view.lengths))
    for sequence, tokens in enumerate(lengths.tolist()):
        pages = table[sequence, : -(-tokens // k.page_size)].tolist()
        cache._core.import_pages(sequence, k._core, v._core, pages, tokens)
