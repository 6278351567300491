"""Arrays of any library: recognise them, make results of the same kind. torch is never imported here."""

from __future__ import annotations

import sys

import numpy as np

from mpfa import _core


FLOATS = ("float32", "bfloat16", "float16")


class Kind:
    """How to describe and make arrays of one library. `dtype` is a name such as "float32" or "bfloat16"."""

    def shape(self, x) -> tuple[int, ...]:
        return tuple(x.shape)

    def dtype(self, x) -> str:
        return str(x.dtype)

    def empty(self, shape, dtype: str):
        raise NotImplementedError

    def result(self, x):
        """What the caller gets of an array made by `empty`."""
        return x


class NumpyKind(Kind):
    _names = {np.dtype(name): name for name in ("float32", "float16", "float64")}

    def dtype(self, x):
        return self._names.get(x.dtype) or str(x.dtype)

    def empty(self, shape, dtype):
        if dtype == "bfloat16":
            import ml_dtypes

            return np.empty(shape, ml_dtypes.bfloat16)
        return np.empty(shape, dtype)


class TorchKind(Kind):
    def __init__(self, torch) -> None:
        self._empty = torch.empty
        self._dtypes = {name: getattr(torch, name) for name in (*FLOATS, "uint8")}
        self._names = {dtype: name for name, dtype in self._dtypes.items()}

    def dtype(self, x):
        return self._names.get(x.dtype) or str(x.dtype).removeprefix("torch.")

    def empty(self, shape, dtype, device="cpu"):
        return self._empty(shape, dtype=self._dtypes[dtype], device=device)


class DlpackKind(Kind):
    """A library known only by the protocol: results go back through its `from_dlpack`, found from the array."""

    def __init__(self, from_dlpack) -> None:
        self._from_dlpack = from_dlpack

    def shape(self, x):
        return _core.describe(x)[0]

    def dtype(self, x):
        return _core.describe(x)[1]

    def empty(self, shape, dtype):
        return _core.allocate([int(n) for n in shape], dtype)

    def result(self, x):
        return self._from_dlpack(x)


_NUMPY = NumpyKind()
_torch_kind: TorchKind | None = None


def _from_dlpack_of(x):
    """The `from_dlpack` of the library that made x, or None."""
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is not None:
        return getattr(namespace(), "from_dlpack", None)
    module = sys.modules.get(type(x).__module__.partition(".")[0])
    return getattr(module, "from_dlpack", None)


def kind_of(x, name: str) -> Kind:
    """The kind of array x; MpfaError when it is none. `name` is for the message."""
    global _torch_kind
    if isinstance(x, np.ndarray):
        return _NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if _torch_kind is None:
            _torch_kind = TorchKind(torch)
        return _torch_kind
    if hasattr(type(x), "__dlpack__"):
        from_dlpack = _from_dlpack_of(x)
        if from_dlpack is not None:
            return DlpackKind(from_dlpack)
        return _BareKind()
    if hasattr(type(x), "__cuda_array_interface__"):
        return _BareKind()
    raise _core.MpfaError(
        f"{name} is a {type(x).__name__}; an array of NumPy, torch or another DLPack library is needed"
    )


class _BareKind(NumpyKind):
    """A producer of memory without a way back: NumPy results."""

    def shape(self, x):
        return _core.describe(x)[0]

    def dtype(self, x):
        return _core.describe(x)[1]


def shape_of(x, name: str, *ranks: int) -> tuple[int, ...]:
    """Shape of array x, which must have one of these numbers of dimensions."""
    shape = kind_of(x, name).shape(x)
    if len(shape) not in ranks:
        raise _core.MpfaError(
            f"{name} has shape {list(shape)}; {' or '.join(map(str, ranks))} dimensions are needed"
        )
    return shape


def plain(x, name: str):
    """x for the extension. A torch tensor that takes part in autograd is refused: there is no gradient."""
    if getattr(x, "requires_grad", False) is True:
        torch = sys.modules["torch"]
        if torch.is_grad_enabled():
            raise _core.MpfaError(
                f"{name} requires a gradient, and mpfa has no backward pass in Python; call it under "
                "torch.no_grad() or pass a detached tensor"
            )
        return x.detach()
    return x


def require_float(dtype: str, name: str) -> str:
    """dtype when attention takes it."""
    if dtype not in FLOATS:
        raise _core.MpfaError(f"{name} is {dtype}; {', '.join(FLOATS)} are allowed")
    return dtype
