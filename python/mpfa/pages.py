"""Pages: keys or values in pages of the caller, and copies between the layouts of different programs."""

from __future__ import annotations

import numpy as np

from mpfa import _core
from mpfa.arguments import integer, number, text
from mpfa.arrays import kind_of, plain
from mpfa.device_arrays import stream_address, to_device, to_host

_FORMATS = {"float32": "f32", "bfloat16": "bf16", "float16": "fp16"}
_FLOAT8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}


def _element(format: str) -> str:
    """Name of the dtype whose values are the codes of a format, or "" where there is none."""
    if format in _FORMATS.values():
        return next(dtype for dtype, name in _FORMATS.items() if name == format)
    return next((dtype for part, dtype in _FLOAT8.items() if f"fp8_{part}" in format), "")


def _require_element(x, name: str, format: str, element: str) -> None:
    """MpfaError when x has a floating point dtype other than `element`; integers are taken as bytes."""
    dtype = kind_of(x, name).dtype(x)
    if "float" in dtype and dtype != element:
        allowed = f"{element} or uint8" if element else "uint8"
        raise _core.MpfaError(
            f"Pages: {name} is {dtype}, which is not what format {format} stores there; {allowed} is needed: convert "
            "the values, or pass uint8 where they are bytes of the format"
        )


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
            float32, bfloat16 or float16, or the codes of `format` as bytes (uint8) or in their own type
            (float8_e4m3fn, float8_e5m2); other floating point types, such as the fnuz ones, are refused. Any
            strides, as of a slice of a tensor with K and V interleaved; only `row` is contiguous
    scales  the same dimensions with the scales of a row last (a single scale may leave the dimension out); for layout
            "tile_128x4" [num_pages, kv_heads, bytes]; None for formats and layouts without scales of their own
    format  name of a storage format; None: that of the dtype
    layout  "linear", "page_swizzle4", "tile_128x4", "ggml" (docs/layouts.md); only "linear" is attended to in place
    scale   calibrated scale of K or V (value = code * block scale * scale): one number, or one per head
    head_dim  where the row does not tell it (odd 4-bit rows, layout "ggml")

    The arrays may be in the memory of a CUDA device: such pages are for a `DevicePageView`; other calls refuse them.
    """

    _moved = None  # makes the same pages of arrays that a function has moved

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
        scale_type = _core.format_fields(text(format, "format"))[0].partition(" ")[0]
        _require_element(data, "data", format, _element(format))
        if scales is not None:
            _require_element(scales, "scales", format, _FLOAT8.get(scale_type, scale_type.replace("none", "")))
        shape = kind_of(data, "data").shape(data)
        heads = shape[1 if text(order, "order").upper() == "HND" else 2] if len(shape) == 4 else 1
        self._moved = lambda move: Pages(
            move(data),
            None if scales is None else move(scales),
            format=format,
            layout=layout,
            order=order,
            head_dim=head_dim,
            scale=move(scale) if getattr(scale, "shape", ()) else scale,
        )
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
    def on_device(self) -> bool:
        """Whether the arrays are in the memory of a CUDA device."""
        return self._core.on_device()

    def to_device(self, device="cuda") -> Pages:
        """A copy in the memory of a CUDA device, bit for bit: torch tensors when torch is loaded."""
        return self._copy(lambda x: to_device(x, device))

    def to_host(self) -> Pages:
        """A copy in host memory, bit for bit; waits for the device."""
        return self._copy(to_host)

    def _copy(self, move) -> Pages:
        if self._moved is None:
            raise _core.MpfaError("pages that convert_pages made share memory with others; copy_pages them first")
        return self._moved(move)

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

    def moved(move):
        return joined_pages(
            move(buffer),
            page_size=page_size,
            kv_heads=kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            k_format=k_format,
            v_format=v_format,
            k_layout=k_layout,
            v_layout=v_layout,
            order=order,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    k, v = (Pages.__new__(Pages)._adopt(core, buffer, None) for core in cores)
    k._moved, v._moved = (lambda move: moved(move)[0]), (lambda move: moved(move)[1])
    return k, v


def convert_pages(
    pages, format: str, page_ids=None, *, mean=None, scale=None, counters=None, stream=None
) -> tuple[Pages, dict[str, int]]:
    """Convert pages of K or V from bfloat16 or float16 to `format` (8 or 4 bits) IN PLACE, as after a prefill.

    pages     `Pages`, or an array [num_pages, page_size, kv_heads, d]; a page is contiguous in either order, pages may
              lie apart, as of a slice of a tensor with K and V interleaved
    page_ids  pages to convert, each once (default: all). For formats whose tokens share scales they must be full
    mean      [kv_heads, d] float32, subtracted first: k_mean or v_mean of a `PageView`
    scale     calibrated scale of formats that store none: one number, or one per head

    Returns the pool as `Pages` of the format, of which converted pages may be read, and the counters of the
    quantisers. A converted page begins with its codes and scales (docs/cache.md), the rest of it keeps its bytes and is
    free; converting it again would take codes for numbers. A refused call changes nothing.

    Pages in device memory are converted there, in one launch on `stream` (as in `DevicePlan.attend`), to the same
    bytes: any format that `DevicePageView.write_slots` writes, pages of at most 227 KB that begin at multiples of 16
    bytes. mean lies on the device; page_ids may, as int32, and is read when the launch runs, where ids outside of the
    pool are skipped; others are copied there first, which no captured stream allows. counters, int64 [3] on the device,
    is added to (non-finite blocks, saturated elements, flushed blocks), and the dictionary is empty.
    """
    source = pages if isinstance(pages, Pages) else Pages(pages)
    to, mean = text(format, "format"), None if mean is None else plain(mean, "mean")
    scale = _scale(scale, source.kv_heads)
    if source.on_device:
        address = stream_address(stream, source.data)
        core, met = _core.convert_device_pages(source._core, to, page_ids, mean, scale, counters, address), ()
    elif counters is not None or stream is not None:
        raise _core.MpfaError("convert_pages: counters and stream are for pages in device memory; leave them out")
    else:
        core, met = _core.convert_pages(source._core, to, page_ids, mean, scale)
    converted = Pages.__new__(Pages)._adopt(core, source.data, None)
    return converted, dict(zip(("saturated", "flushed", "nonfinite"), met))


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
