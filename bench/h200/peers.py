"""Time the decode peers on the card: scaled_dot_product_attention of PyTorch (cuDNN, flash) and FlashInfer.

    python bench/h200/peers.py --out decode_peers.json [--flashinfer FOLDER] [--quick]

Every peer runs as a replayed CUDA graph with the level-2 cache flushed before each timed replay. FOLDER holds what
pack_flashinfer.py packed; its kernels (bf16, fp8 and nvfp4 caches, pages of 64 in random order) are built at first use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

PAGE = 64
FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Case:
    """One decode step: a query row for each of b sequences over kv keys."""

    b: int
    kv: int
    hq: int = 32
    hkv: int = 8
    d: int = 128


def grid(quick: bool) -> list[Case]:
    if quick:
        return [Case(1, 4096), Case(8, 32768)]
    lengths = {
        1: (4096, 16384, 32768, 131072),
        8: (4096, 16384, 32768, 131072),
        32: (4096, 8192, 16384, 32768),
        64: (8192, 16384, 32768),
    }
    return [Case(b, kv) for b, kvs in lengths.items() for kv in kvs]


def time_graph(call: Callable[[], object], repeats: int = 30) -> dict[str, float]:
    """{median_us, min_us, max_us} of replays of `call`, each with a flushed level-2 cache."""
    flush = torch.ones(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(repeats + 3):
        flush.max()  # reads only: modified lines would be written back at the peer's expense
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    times = times[3:]
    return {"median_us": statistics.median(times), "min_us": min(times), "max_us": max(times)}


def torch_calls(case: Case) -> dict[str, Callable[[], object]]:
    make = {"dtype": torch.bfloat16, "device": "cuda"}
    q = torch.randn((case.b, case.hq, 1, case.d), **make)
    k, v = (torch.randn((case.b, case.hkv, case.kv, case.d), **make) for _ in range(2))

    def sdpa(backend: SDPBackend) -> Callable[[], object]:
        def call() -> object:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return call

    return {"torch_cudnn_bf16": sdpa(SDPBackend.CUDNN_ATTENTION), "torch_flash_bf16": sdpa(SDPBackend.FLASH_ATTENTION)}


def flashinfer_call(case: Case, kind: str) -> Callable[[], object]:
    """Paged decode over a cache of kind bf16, fp8 or nvfp4 with a bf16 query."""
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper

    device = {"device": "cuda"}
    pages = case.kv // PAGE
    total = case.b * pages
    indptr = torch.arange(case.b + 1, dtype=torch.int32, **device) * pages
    indices = torch.randperm(total, **device).int()
    last = torch.full((case.b,), PAGE, dtype=torch.int32, **device)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(512 * 2**20, dtype=torch.uint8, **device),
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=indptr,
        paged_kv_indices_buffer=indices,
        paged_kv_last_page_len_buffer=last,
    )
    shape = (total, PAGE, case.hkv, case.d)
    stored = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "nvfp4": torch.uint8}[kind]
    wrapper.plan(
        indptr, indices, last, case.hq, case.hkv, case.d, PAGE, q_data_type=torch.bfloat16, kv_data_type=stored
    )
    q = torch.randn((case.b, case.hq, case.d), dtype=torch.bfloat16, **device)
    if kind == "nvfp4":
        codes = tuple(
            torch.randint(0, 256, (*shape[:3], case.d // 2), dtype=torch.uint8, **device) for _ in range(2)
        )
        scales = tuple(torch.ones((*shape[:3], case.d // 16), **device).to(torch.float8_e4m3fn) for _ in range(2))
        return lambda: wrapper.run(q, codes, kv_cache_sf=scales)
    cache = tuple(torch.randn(shape, dtype=torch.bfloat16, **device).to(stored) for _ in range(2))
    return lambda: wrapper.run(q, cache)


def measure(case: Case, flashinfer: bool) -> dict[str, dict]:
    """Times of every peer; a peer that fails is left out and its message goes to stderr."""
    times: dict[str, dict] = {}
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        name: lambda name=name: torch_calls(case)[name] for name in ("torch_cudnn_bf16", "torch_flash_bf16")
    }
    if flashinfer:
        for kind in ("bf16", "fp8", "nvfp4"):
            makers[f"flashinfer_{kind}"] = lambda kind=kind: flashinfer_call(case, kind)
    for name, make in makers.items():
        try:
            times[name] = time_graph(make())
        except (RuntimeError, ValueError, TypeError) as error:
            print(f"{name} {case}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flashinfer", type=Path, help="folder with what pack_flashinfer.py packed")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.flashinfer:
        sys.path.insert(0, str(args.flashinfer))
    rows = []
    for case in grid(args.quick):
        begin = time.perf_counter()
        rows.append({**asdict(case), "page": PAGE, "peers": measure(case, args.flashinfer is not None)})
        summary = ", ".join(f"{name} {t['median_us']:.1f}" for name, t in rows[-1]["peers"].items())
        print(f"b{case.b} kv{case.kv}: {summary} us ({time.perf_counter() - begin:.0f} s)", flush=True)
        device = torch.cuda.get_device_properties(0)
        result = {"device": device.name, "torch": torch.__version__, "cuda": torch.version.cuda, "rows": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
