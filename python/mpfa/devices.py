"""What this build contains, and what this machine can run of it."""

from __future__ import annotations

from dataclasses import dataclass

from mpfa import _core
from mpfa.arguments import text


@dataclass(frozen=True)
class BuildInfo:
    """version; devices with kernels in this build; cuda: toolkit that compiled those of GPUs, "" without any;
    without_cuda: why there are none."""

    version: str
    devices: tuple[str, ...]
    cuda: str
    without_cuda: str

    def __str__(self) -> str:
        kernels = f"mpfa {self.version}: kernels for {', '.join(self.devices)}"
        if self.cuda:
            return f"{kernels} (CUDA {self.cuda})"
        return f"{kernels}; built without CUDA kernels: {self.without_cuda}"


def build_info() -> BuildInfo:
    """What the compiled part was built with."""
    return BuildInfo(*_core.build_info())


@dataclass(frozen=True)
class Availability:
    """The kind of a device on which plans can be made now ("" for none), or the reason; true when there is one."""

    device: str
    reason: str

    def __bool__(self) -> bool:
        return bool(self.device)


def available(device: str = "cuda") -> Availability:
    """Whether plans for a device ("cpu", "sm90", ..., "cuda" for the current CUDA device) can be made here and now."""
    return Availability(*_core.available(text(device, "device")))
