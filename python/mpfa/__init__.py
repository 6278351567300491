"""Attention with 4- and 8-bit operands on packed, paged KV caches.

    cache = mpfa.PagedCache("mxfp4", q_heads=32, kv_heads=8, head_dim=128)
    cache.append(k, v)
    out = cache.attend(q)

Tensors are NumPy arrays, torch tensors or anything with `__dlpack__`, on the CPU; results are of the
kind that came in. `DevicePageView` attends to pages in the memory of a CUDA device. Inputs are never
modified, except where a docstring says IN PLACE. Bad input raises `MpfaError` (a `ValueError`) that says
what is allowed.
"""

from pkgutil import extend_path

# The extension may lie in a build folder of its own that is on the search path too.
__path__ = extend_path(__path__, __name__)

from mpfa.version import __version__

try:
    from mpfa import _core
except ImportError as error:
    raise ImportError(
        f"mpfa: the compiled extension mpfa._core cannot be loaded ({error}); build it for this Python with "
        "`cmake -S . -B build/release -DMPFA_BUILD_PYTHON=ON` and `cmake --build build/release --target "
        "mpfa_python_develop`"
    ) from error
if _core.version() != __version__:
    raise ImportError(
        f"mpfa: the Python files are version {__version__}, the compiled extension is {_core.version()}; "
        "rebuild the extension"
    )

from mpfa.arguments import AttendOptions, ProblemFields
from mpfa.attention import Support, attend, merge_states, supports
from mpfa.cache import PagedCache
from mpfa.device_arrays import DeviceArray
from mpfa.device_view import DevicePageView, DevicePlan
from mpfa.devices import Availability, BuildInfo, available, build_info
from mpfa.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from mpfa.formats import (
    QuantizedTensor,
    bytes_per_token,
    dequantize,
    format_description,
    formats,
    quantize,
    recipe_source,
    recipe_text,
    recipes,
)
from mpfa.rope import Rope

from mpfa.page_view import PageView
from mpfa.pages import Pages, convert_pages, copy_pages, joined_pages

MpfaError = _core.MpfaError
MpfaError.__module__ = "mpfa"
MpfaError.__doc__ = "Input that a call does not accept; the text says what was given, what is allowed, what to do."

__all__ = [
    "AttendOptions",
    "Availability",
    "BuildInfo",
    "DeviceArray",
    "DevicePageView",
    "DevicePlan",
    "MpfaError",
    "PageView",
    "PagedCache",
    "Pages",
    "ProblemFields",
    "QuantizedTensor",
    "Rope",
    "Support",
    "__version__",
    "attend",
    "available",
    "build_info",
    "bytes_per_token",
    "convert_pages",
    "copy_pages",
    "dequantize",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "format_description",
    "formats",
    "joined_pages",
    "merge_states",
    "quantize",
    "recipe_source",
    "recipe_text",
    "recipes",
    "supports",
]
