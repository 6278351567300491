"""Storage formats and recipes: their names, and quantising of plain tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpfa import _core
from mpfa.arguments import flag, integer, number, text
from mpfa.arrays import Kind, kind_of, plain, require_float


def recipes() -> list[str]:
    """Names of the recipe table."""
    return _core.recipes()


def recipe_text(recipe: str) -> str:
    """The shortest text of the same recipe; MpfaError names the field that is wrong."""
    return _core.recipe_text(text(recipe, "recipe"))


def recipe_source(name: str) -> str:
    """One line: what a recipe of the table is and where it comes from."""
    return _core.recipe_source(text(name, "name"))


def formats() -> list[str]:
    """Names of the storage formats."""
    return _core.formats()


def format_description(name: str) -> str:
    """One line on element, block, scale and rule."""
    return _core.format_description(text(name, "name"))


def bytes_per_token(
    recipe: str,
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    head_dim_v: int | None = None,
    page_size: int = 64,
    shared_kv: bool = False,
) -> float:
    """Exact packed bytes of one cached token over all KV heads; needs no calibrated means."""
    return _core.bytes_per_token(
        text(recipe, "recipe"),
        integer(q_heads, "q_heads", 1),
        integer(kv_heads, "kv_heads", 1),
        integer(head_dim, "head_dim", 1),
        integer(head_dim if head_dim_v is None else head_dim_v, "head_dim_v", 1),
        integer(page_size, "page_size", 1),
        flag(shared_kv, "shared_kv"),
    )


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor [..., tokens, head_dim] in a storage format; every leading index is one head.

    data         uint8 [..., rows, bytes]: row = token, or channel for formats along the keys
    scales       uint8 [..., rows, bytes]: row = group of tokens that share a scale, or channel
    format       name of the format
    shape        shape of the tensor that was quantised
    metadata     nibble_order, scale_layout, scale_type, axis, block_channels (0 = all), block_keys, element_bits
    counters     saturated elements, blocks flushed to zero, blocks with NaN or Inf
    scale        calibrated scale of every head, or None
    """

    data: Any
    scales: Any
    format: str
    shape: tuple[int, ...]
    metadata: dict[str, Any]
    counters: dict[str, int]
    scale: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        heads = math.prod(self.shape[:-2])
        data_rows, data_bytes, scale_rows, scale_bytes = _core.format_geometry(
            self.format, self.shape[-1], self.shape[-2]
        )
        return heads * (data_rows * data_bytes + scale_rows * scale_bytes)


def _metadata(name: str) -> dict[str, Any]:
    scale_type, along_keys, block_channels, block_keys, bits, _ = _core.format_fields(name)
    return {
        "nibble_order": "interleaved" if bits == 4 else "none",  # element 2i in the low nibble
        "scale_layout": "linear",
        "scale_type": scale_type,
        "axis": "keys" if along_keys else "head_dim",
        "block_channels": block_channels,
        "block_keys": block_keys,
        "element_bits": bits,
    }


def _heads_of(x, kind: Kind, name: str):
    """x [..., rows, columns] as [heads, rows, columns]; an array without reshape needs three dimensions already."""
    shape = kind.shape(x)
    if len(shape) == 3:
        return x
    if not hasattr(x, "reshape"):
        raise _core.MpfaError(f"{name} has shape {list(shape)}; this kind of array must have three dimensions")
    return x.reshape((math.prod(shape[:-2]), *shape[-2:]))


def _scale_of(scale, name: str, heads: int):
    """Calibrated scales as an array [heads]: an array, numbers, or one number for all heads."""
    if scale is None:
        if _core.format_fields(name)[5]:
            raise _core.MpfaError(f"format {name} stores no scale; pass scale [heads], calibrated by you")
        return None
    if isinstance(scale, (list, tuple)):
        return np.array([number(s, "scale") for s in scale], np.float32)
    if not getattr(scale, "shape", ()):
        return np.full(heads, number(scale, "scale"), np.float32)
    return plain(scale, "scale")


def quantize(x, format: str, *, scale=None) -> QuantizedTensor:
    """Quantise x [..., tokens, head_dim] (float32, bfloat16, float16) as one page of `tokens` slots per head.

    `scale` [heads] (or one number for all) is the calibrated scale of formats that store none. The rounding
    rules are those of the formats' sources: OCP Microscaling v1.0, arXiv 2512.02010 (4over6), 2607.24377
    (least mean error).
    """
    kind = kind_of(x, "x")
    shape = kind.shape(x)
    if len(shape) < 2:
        raise _core.MpfaError(f"x has shape {list(shape)}; [..., tokens, head_dim] is needed")
    require_float(kind.dtype(x), "x")
    metadata = _metadata(text(format, "format"))
    heads = math.prod(shape[:-2])
    scale = _scale_of(scale, format, heads)
    data_rows, data_bytes, scale_rows, scale_bytes = _core.format_geometry(format, shape[-1], shape[-2])
    data = kind.empty((heads, data_rows, data_bytes), "uint8")
    scales = kind.empty((heads, scale_rows, scale_bytes), "uint8")
    counters = _core.quantize(_heads_of(plain(x, "x"), kind, "x"), format, scale, data, scales)
    return QuantizedTensor(
        data=_with_heads(kind.result(data), shape),
        scales=_with_heads(kind.result(scales), shape),
        format=format,
        shape=tuple(shape),
        metadata=metadata,
        counters=dict(zip(("saturated", "flushed", "nonfinite"), counters)),
        scale=scale,
    )


def _with_heads(x, shape: tuple[int, ...]):
    return x if len(shape) == 3 else x.reshape((*shape[:-2], *x.shape[-2:]))


def dequantize(x: QuantizedTensor):
    """The float32 values of a quantised tensor, of its kind and shape."""
    if not isinstance(x, QuantizedTensor):
        raise _core.MpfaError(f"x is a {type(x).__name__}; a QuantizedTensor of mpfa.quantize is needed")
    kind = kind_of(x.data, "x.data")
    heads = math.prod(x.shape[:-2])
    out = kind.empty((heads, *x.shape[-2:]), "float32")
    data = _heads_of(x.data, kind, "x.data")
    scales = _heads_of(x.scales, kind_of(x.scales, "x.scales"), "x.scales")
    _core.dequantize(data, scales, x.format, x.scale, out)
    return _with_heads(kind.result(out), x.shape)
