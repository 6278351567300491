"""Pages, PageView: attention over pages, page tables and lengths that belong to the caller."""

from __future__ import annotations

import numpy as np

from mpfa import _core
from mpfa.arguments import core_options, integer, number, text
from mpfa.arrays import kind_of, plain, require_float
from mpfa.cache import attend_core

_FORMATS = {"float32": "f32", "bfloat16": "bf16", "float16": "fp16"}


def _bytes(x, name: str):
    """x, or its bytes when its elements are of one byte and of a type that DLPack producers do not all have."""
    dtype = kind_of(x, name).dtype(x)
    if dtype in {"uint8", "bool"} or not ("float8" in dtype or "int8" in dtype):
        return plain(x, name)
    module = type(x).__module__.partition(".")[0]
    if module == "torch":
        import torch

        return x.view(torch.uint8)
    if not hasattr(x, "view"):
        raise _core.MpfaError(f"{name} is {dtype}; pass its bytes as uint8")
    return x.view(np.uint8)


def _scale(scale, heads: int):
    """One float32 per head, from an array, a sequence or one number for all."""
    if scale is None:
        return None
    if isinstance(scale, (list, tuple)):
        return np.array([number(s, "scale") for s in scale], np.float32)
    if not getattr(scale, "shape", ()):
        return np.full(heads, number(scale, "scale"), np.float32)
    return plain(scale, "scale")


class Pages:
    """K or V of a pool of pages, in arrays of the caller that are read, and written only where a call says so.

    data    [num_pages, page_size, kv_heads, row] with order "NHD", [num_pages, kv_heads, page_size, row] with "HND";
            float32, bfloat16 or float16, or the codes of `format` in elements of any type (uint8, float8, ...).
            Any strides, as of a slice of a tensor with K and V interleaved; only `row` is contiguous
    scales  the same dimensions with the scales of a row last (a single scale may leave the dimension out); for layout
            "tile_128x4" [num_pages, kv_heads, bytes]; None for formats and layouts without scales of their own
    format  name of a storage format; None: that of the dtype
    layout  "linear", "page_swizzle4", "tile_128x4", "ggml" (docs/layouts.md); only "linear" is attended to in place
    scale   calibrated scale of K or V (value = code * block scale * scale): one number, or one per head
    head_dim  where the row does not tell it (odd 4-bit rows, layout "ggml")
    """

    def __init__(
        self,
        data,
        scales=None,
        *,
        format: str | None = None,
        layout: str = "linear",
        order: str = "NHD",
        head_dim: int | None = None,
        scale=None,
    ) -> None:
        dtype = kind_of(data, "data").dtype(data)
        if format is None:
            if dtype not in _FORMATS:
                raise _core.MpfaError(f"Pages: data is {dtype}; name its storage format (see mpfa.formats())")
            format = _FORMATS[dtype]
        shape = kind_of(data, "data").shape(data)
        heads = shape[1 if text(order, "order").upper() == "HND" else 2] if len(shape) == 4 else 1
        self._adopt(
            _core.Pages(
                _bytes(data, "data"),
                None if scales is None else _bytes(scales, "scales"),
                text(format, "format"),
                text(layout, "layout"),
                order,
                0 if head_dim is None else integer(head_dim, "head_dim", 1),
                _scale(scale, heads),
            ),
            data,
            scales,
        )

    def _adopt(self, core, data, scales) -> Pages:
        self._core = core
        self.data, self.scales = data, scales
        self.num_pages, self.page_size, self.kv_heads, self.head_dim = core.extents()
        return self

    @classmethod
    def empty(
        cls,
        num_pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        *,
        format: str,
        layout: str = "linear",
        order: str = "NHD",
        scale=None,
    ) -> Pages:
        """Zeroed pages in NumPy arrays of their own (uint8)."""
        extents = [
            integer(n, name, least)
            for n, name, least in (
                *((num_pages, "num_pages", 0), (page_size, "page_size", 1)),
                *((kv_heads, "kv_heads", 1), (head_dim, "head_dim", 1)),
            )
        ]
        row, scale_rows, scale_row = _core.pages_geometry(text(format, "format"), text(layout, "layout"), *extents)

        def zeros(rows: int, row: int):
            hnd = text(order, "order").upper() == "HND"
            inner = (kv_heads, rows) if hnd else (rows, kv_heads)
            return np.zeros((num_pages, *inner, row), np.uint8)

        scales = None
        if scale_rows * scale_row > 0:
            tiles = layout == "tile_128x4"
            scales = np.zeros((num_pages, kv_heads, scale_row), np.uint8) if tiles else zeros(scale_rows, scale_row)
        data = zeros(page_size, row)
        return cls(data, scales, format=format, layout=layout, order=order, head_dim=head_dim, scale=scale)

    @property
    def format(self) -> str:
        return self._core.format()

    @property
    def layout(self) -> str:
        return self._core.layout()

    @property
    def tag(self) -> str:
        """What the bytes are, to travel with them: format, layout, page_size, kv_heads, head_dim."""
        return self._core.tag()

    def check_tag(self, tag: str) -> None:
        """MpfaError unless `tag`, as the writer of the bytes gave it, is that of this description of them."""
        self._core.check_tag(text(tag, "tag"))

    def __repr__(self) -> str:
        return f"Pages({self.tag!r}, num_pages={self.num_pages})"


def joined_pages(
    buffer,
    *,
    page_size: int,
    kv_heads: int,
    head_dim: int,
    head_dim_v: int | None = None,
    k_format: str,
    v_format: str | None = None,
    k_layout: str = "linear",
    v_layout: str = "linear",
    order: str = "NHD",
    k_scale=None,
    v_scale=None,
) -> tuple[Pages, Pages]:
    """K and V in pages of one buffer, uint8 [num_pages, bytes], each page [K data | K scales | V data | V scales].

    This is the packed cache of vLLM (nvfp4, order "HND"; v_layout "page_swizzle4" where it was written for sm_100,
    "linear" for sm_120), and with 16-bit formats [num_pages, 2, ...]. Pages may be longer than their content.
    """
    heads = integer(kv_heads, "kv_heads", 1)
    d = integer(head_dim, "head_dim", 1)
    cores = _core.joined_pages(
        plain(buffer, "buffer"),
        (text(k_format, "k_format"), text(k_format if v_format is None else v_format, "v_format")),
        (text(k_layout, "k_layout"), text(v_layout, "v_layout")),
        text(order, "order"),
        integer(page_size, "page_size", 1),
        heads,
        (d, d if head_dim_v is None else integer(head_dim_v, "head_dim_v", 1)),
        (_scale(k_scale, heads), _scale(v_scale, heads)),
    )
    k, v = (Pages.__new__(Pages)._adopt(core, buffer, None) for core in cores)
    return k, v


def copy_pages(source: Pages, target: Pages, source_ids=None, target_ids=None, *, tokens: int | None = None) -> None:
    """Copy pages IN PLACE into `target`, changing the layout where the two differ; bit for bit, so that the way back
    gives the same bytes.

    source_ids: pages to copy (default: all); target_ids: where to (default: 0, 1, ...). Format, page_size, kv_heads
    and head_dim must be equal. tokens: what the source pages hold together when they are those of one sequence, in
    order; slots past them are not read and become zero. NaN and negative scales do not fit ggml's mxfp4 and nvfp4.
    """
    for x, name in ((source, "source"), (target, "target")):
        if not isinstance(x, Pages):
            raise _core.MpfaError(f"copy_pages: {name} is a {type(x).__name__}; mpfa.Pages are needed")
    count = -1 if tokens is None else integer(tokens, "tokens", 0)
    _core.copy_pages(source._core, target._core, source_ids, target_ids, count)


class PageView:
    """K and V pages with a page table and lengths: what `attend` reads of a cache that the caller owns.

    k, v           `Pages` of layout "linear", or arrays of 16 or 32 bits [num_pages, page_size, kv_heads, d]
                   (order "HND": [num_pages, kv_heads, page_size, d]): read where they lie
    page_table     [batch, pages] int32 or int64 with lengths [batch] (tokens); entries past a length may hold
                   anything, pages may be shared; or instead, as FlashInfer has it,
    indptr         [batch + 1], indices [...], last_page_len [batch]: pages of sequence b are
                   indices[indptr[b]:indptr[b + 1]], the last one with last_page_len[b] tokens
    recipe         None: operands as they are stored, q in its own dtype, exact probabilities; otherwise a recipe
                   with the formats of k and v, and static means if it centres
    k_mean         [kv_heads, head_dim], q_mean [q_heads, head_dim], v_mean [kv_heads, head_dim_v]: for static means

    The arrays stay alive with the view and must not be resized. Page table and lengths are copied: `set_table` after
    they changed. Nothing is written except by `write_slots`.
    """

    def __init__(
        self,
        k,
        v,
        *,
        page_table=None,
        lengths=None,
        indptr=None,
        indices=None,
        last_page_len=None,
        order: str = "NHD",
        recipe: str | None = None,
        k_mean=None,
        q_mean=None,
        v_mean=None,
    ) -> None:
        self.k, self.v = (x if isinstance(x, Pages) else Pages(x, order=order) for x in (k, v))
        self._head_dim_v = self.v.head_dim
        means = {"k_mean": k_mean, "q_mean": q_mean, "v_mean": v_mean}
        self._core = _core.PageView(
            self.k._core,
            self.v._core,
            "" if recipe is None else _core.recipe_text(text(recipe, "recipe")),
            *(None if x is None else plain(x, name) for name, x in means.items()),
        )
        self.set_table(
            page_table=page_table, lengths=lengths, indptr=indptr, indices=indices, last_page_len=last_page_len
        )

    def set_table(self, *, page_table=None, lengths=None, indptr=None, indices=None, last_page_len=None) -> None:
        """Replace page table and lengths (either form; arguments as of the class)."""
        compressed = indptr is not None or indices is not None or last_page_len is not None
        if compressed == (page_table is not None) or compressed and lengths is not None:
            raise _core.MpfaError(
                "PageView: give page_table and lengths, or indptr, indices and last_page_len, and not both"
            )
        self._core.set_table(page_table, lengths, indptr, indices, last_page_len)

    def attend(
        self,
        q,
        *,
        softmax_scale: float | None = None,
        causal: bool = True,
        window: tuple[int | None, int | None] = (-1, -1),
        softcap: float = 0.0,
        sinks=None,
        mask=None,
        alibi_slopes=None,
        return_lse: bool = False,
        cu_seqlens_q=None,
        threads: int = 0,
    ):
        """Attention of q over the pages; arguments and result as in `PagedCache.attend`."""
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
        return attend_core(self._core, q, self._head_dim_v, options, return_lse)

    def write_slots(self, k, v, slot_mapping) -> dict[str, int]:
        """Quantise tokens IN PLACE into the pages, as the recipe says, and return the counters of the quantisers.

        k [n, kv_heads, head_dim], v [n, kv_heads, head_dim_v], float32, bfloat16 or float16; slot_mapping [n] int32 or
        int64: page * page_size + slot, each at most once, -1 skips the token. Page table and lengths do not change.
        """
        met = self._core.write_slots(plain(k, "k"), plain(v, "v"), slot_mapping)
        return dict(zip(("saturated", "flushed", "nonfinite"), met))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return self._core.lengths()

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def recipe(self) -> str | None:
        """The recipe that was given."""
        return self._core.recipe() or None

    def __repr__(self) -> str:
        return f"PageView(k={self.k!r}, v={self.v!r}, lengths={list(self.lengths)})"


__all__ = ["PageView", "Pages", "copy_pages", "joined_pages"]
