"""Machine and software versions, for the report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
PACKAGES = ("mpfa", "torch", "transformers", "numpy", "tokenizers", "safetensors")


def _cpuinfo() -> dict[str, str]:
    """Fields of the first processor; empty on systems without /proc."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def describe_machine() -> dict:
    """CPU model, usable cores and the instruction sets that matter here."""
    info = _cpuinfo()
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "system": platform.platform(terse=True),
    }


def describe_versions() -> dict[str, str]:
    """Installed versions of the packages that take part."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def available_memory() -> float:
    """Bytes that can be allocated without swapping; infinite where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return float("inf")
    for line in lines:
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return float("inf")
