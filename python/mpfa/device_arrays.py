"""Arrays in CUDA memory: copies to and from the host, and the stream of a call. torch is never imported here."""

from __future__ import annotations

import sys

import numpy as np

from mpfa import _core


class DeviceArray:
    """Device memory that mpfa owns, for processes without torch; any library reads it by `__cuda_array_interface__`."""

    def __init__(self, buffer, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._buffer, self.shape, self.dtype = buffer, shape, dtype

    @property
    def __cuda_array_interface__(self) -> dict:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self._buffer.address(), False), "version": 3}

    def to_host(self) -> np.ndarray:
        """A copy in host memory; waits for the device."""
        host = np.empty(self.shape, self.dtype)
        self._buffer.download(host.reshape(-1).view(np.uint8))
        return host


def _torch_of(x):
    """torch, when it is loaded and x is one of its tensors; None otherwise."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else None


def to_device(x, device="cuda"):
    """A copy of host array x on a CUDA device: a torch tensor when torch is loaded, a `DeviceArray` otherwise."""
    kind, reason = _core.available("cuda")
    if not kind:
        raise _core.MpfaError(f"to_device: {reason}")
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = x if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x))
        return tensor.to(device)
    if device != "cuda":
        raise _core.MpfaError(f'device is {device!r}; without torch only "cuda", the current device, is possible')
    host = np.ascontiguousarray(x)
    return DeviceArray(_core.upload(host.reshape(-1).view(np.uint8)), host.shape, host.dtype)


def to_host(x):
    """A copy of device array x in host memory, of its library; waits for the device."""
    if isinstance(x, np.ndarray):
        return x
    if _torch_of(x) is not None:
        return x.cpu()
    for method in ("to_host", "get"):  # DeviceArray, cupy
        if hasattr(x, method):
            return getattr(x, method)()
    raise _core.MpfaError(f"a {type(x).__name__} cannot be copied to the host here; copy it with its own library")


def empty_beside(x, name: str, shape: tuple[int, ...], dtype: str):
    """An array on the device of torch tensor x; other libraries give theirs."""
    torch = _torch_of(x)
    if torch is None:
        raise _core.MpfaError(f"{name} is None and q is a {type(x).__name__}; pass {name}, of shape {list(shape)}")
    return x.new_empty(shape, dtype=getattr(torch, dtype))


def stream_address(stream, x) -> int:
    """The cudaStream_t of a stream of torch, cupy or cuda.core, or an int; None: torch's current, or the default."""
    if stream is None:
        torch = _torch_of(x)
        if torch is None or not x.is_cuda:
            return 0
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # without the object around it: a tenth of the time
        return raw(x.get_device()) if raw is not None else torch.cuda.current_stream(x.device).cuda_stream
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise _core.MpfaError(f"stream is a {type(stream).__name__}; an int (cudaStream_t) or a stream object is needed")
