"""Time the decode peers on the card: scaled_dot_product_attention of PyTorch (cuDNN, flash) and FlashInfer.

    python bench/h200/peers.py --out decode_peers.json [--flashinfer FOLDER] [--grid NAME]

Every peer runs as a replayed CUDA graph with the level-2 cache flushed before each timed replay. FOLDER holds what
pack_flashinfer.py packed; its kernels (bf16, fp8 and nvfp4 caches, pages of 64 in random order) are built at first use.

A row of the file has `peers`, {name: {median_us, min_us, max_us, mask}} where mask says what limits q rows to their
keys, "causal" (the last row sees all keys, the one before it all but one) or "none"; a peer that failed has
{error, mask} instead.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

PAGE = 64
FLUSH_BYTES = 256 * 2**20
CLEARED_PER_SECOND = 1.7e10  # of memory that was freed, behind which kernels are slower; see decode_bench.cu


@dataclass(frozen=True)
class Case:
    """One step of decode or verify: q query rows for each of b sequences over kv keys, those of the rows included.

    A row sees the last `window` keys up to its own, or all if that is 0.
    """

    b: int
    kv: int
    q: int = 1
    hq: int = 32
    hkv: int = 8
    d: int = 128
    window: int = 0

    def cache_bytes(self) -> int:
        """Of bf16."""
        return 4 * self.b * self.kv * self.hkv * self.d


def decode_grid() -> list[Case]:
    lengths = {
        1: (4096, 16384, 32768, 131072),
        8: (4096, 16384, 32768, 131072),
        32: (4096, 8192, 16384, 32768),
        64: (8192, 16384, 32768),
    }
    return [Case(b, kv) for b, kvs in lengths.items() for kv in kvs]


def verify_grid() -> list[Case]:
    """The steps of decode_bench with 4, 8 and 16 query heads a KV head; one row of 4 heads is a case of decode."""
    cases = [Case(32, 16384, q, hq) for hq in (32, 64, 128) for q in (1, 2, 4, 8)]
    return [case for case in cases if case != Case(32, 16384)]


def heads_grid() -> list[Case]:
    """An eighth of 64/8 heads, heads of 64 channels as of gpt-oss, of 256 as of Qwen3-Next."""
    steps = ((1, 1), (1, 4), (8, 1), (32, 1), (32, 2), (32, 4), (32, 8))
    return [Case(b, 16384, q, *heads) for heads in ((8, 1, 128), (64, 8, 64), (16, 2, 256)) for b, q in steps]


def windows_grid() -> list[Case]:
    """Windows as of gpt-oss, Gemma 3 and Mistral."""
    layers = ((64, 8, 64, 128), (16, 8, 256, 1024), (32, 8, 128, 4096))
    return [Case(b, 16384, 1, *layer) for layer in layers for b in (1, 8, 32)]


GRIDS: dict[str, Callable[[], list[Case]]] = {
    "all": lambda: decode_grid() + verify_grid() + heads_grid() + windows_grid(),
    "decode": decode_grid,
    "verify": verify_grid,
    "heads": heads_grid,
    "windows": windows_grid,
    "quick": lambda: [Case(1, 4096), Case(8, 32768), Case(8, 4096, 4)],
}


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


def torch_call(case: Case, backend: SDPBackend) -> Callable[[], object]:
    """Keys contiguous, as PyTorch wants them; several rows are causal where the backend can align them to the end."""
    make = {"dtype": torch.bfloat16, "device": "cuda"}
    q = torch.randn((case.b, case.hq, case.q, case.d), **make)
    k, v = (torch.randn((case.b, case.hkv, case.kv, case.d), **make) for _ in range(2))
    # Only flash has this mask as a mode; is_causal of the others aligns the first row with the first key.
    bias = causal_lower_right(case.q, case.kv) if case.q > 1 and backend == SDPBackend.FLASH_ATTENTION else None

    def call() -> object:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)

    return call


def flashinfer_call(case: Case, kind: str) -> Callable[[], object]:
    """Paged attention over a cache of kind bf16, fp8 or nvfp4 with bf16 queries, causal for several rows.

    One row is a call of its decode wrapper, several are one of its prefill wrapper. Its back end fa3, which it takes for
    bf16 unless told otherwise, takes time by query heads, and minutes to build.
    """
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

    device = {"device": "cuda"}
    pages = case.kv // PAGE
    total = case.b * pages
    starts = torch.arange(case.b + 1, dtype=torch.int32, **device)
    indptr = starts * pages
    indices = torch.randperm(total, **device).int()
    last = torch.full((case.b,), PAGE, dtype=torch.int32, **device)
    workspace = torch.empty(512 * 2**20, dtype=torch.uint8, **device)
    stored = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "nvfp4": torch.uint8}[kind]
    heads = (case.hq, case.hkv, case.d, PAGE)
    dtypes = {"q_data_type": torch.bfloat16, "kv_data_type": stored}
    q = torch.randn((case.b * case.q, case.hq, case.d), dtype=torch.bfloat16, **device)
    if case.q == 1:
        wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=indptr,
            paged_kv_indices_buffer=indices,
            paged_kv_last_page_len_buffer=last,
        )
        wrapper.plan(indptr, indices, last, *heads, window_left=case.window - 1, **dtypes)
    else:
        rows = starts * case.q
        wrapper = BatchPrefillWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=rows,
            paged_kv_indptr_buf=indptr,
            paged_kv_indices_buf=indices,
            paged_kv_last_page_len_buf=last,
            backend="fa2",
        )
        # Told that every sequence has q rows, it plans tiles for these and not for the worst case of a graph.
        wrapper.plan(rows, indptr, indices, last, *heads, causal=True, uniform_q_len=case.q, **dtypes)
    out = torch.empty_like(q)  # its prefill clears an output that it makes itself
    shape = (total, PAGE, case.hkv, case.d)
    if kind == "nvfp4":
        codes = tuple(torch.randint(0, 256, (*shape[:3], case.d // 2), dtype=torch.uint8, **device) for _ in range(2))
        scales = tuple(torch.ones((*shape[:3], case.d // 16), **device).to(torch.float8_e4m3fn) for _ in range(2))
        return lambda: wrapper.run(q, codes, out=out, kv_cache_sf=scales)
    cache = tuple(torch.randn(shape, dtype=torch.bfloat16, **device).to(stored) for _ in range(2))
    return lambda: wrapper.run(q, cache, out=out)


def xqa_call(case: Case) -> Callable[[], object]:
    """FlashInfer's XQA over an fp8 cache; for one row, and for more than 32 of a KV head, q and P become fp8 too."""
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    device = {"device": "cuda"}
    tables = torch.randperm(case.b * case.kv // PAGE, **device).int().view(case.b, -1)
    lengths = torch.full((case.b,), case.kv, dtype=torch.int32, **device).view(torch.uint32)
    workspace = torch.zeros(512 * 2**20, dtype=torch.uint8, **device)
    q = torch.randn((case.b * case.q, case.hq, case.d), dtype=torch.bfloat16, **device)
    shape = (tables.numel(), PAGE, case.hkv, case.d)
    cache = tuple(torch.randn(shape, dtype=torch.bfloat16, **device).to(torch.float8_e4m3fn) for _ in range(2))
    # Bits of the rows up to its own, two words of 16 a row.
    bits = torch.tensor([[(2 << row) - 1, 0] for row in range(case.q)], dtype=torch.int16, **device)
    mask = bits.expand(case.b, -1, -1).contiguous().view(torch.uint16) if case.q > 1 else None
    out = torch.empty_like(q)
    options = {"bmm1_scale": case.d**-0.5, "q_len_per_req": case.q, "mask": mask, "out": out}
    options["window_left"] = case.window - 1
    return lambda: xqa_batch_decode_with_kv_cache(q, cache, workspace, tables, lengths, case.kv, **options)


def makers(case: Case, flashinfer: bool) -> dict[str, Callable[[], Callable[[], object]]]:
    """{name: function that makes the call}."""
    found: dict[str, Callable[[], Callable[[], object]]] = {}
    if not case.window:  # PyTorch has windows as mask tensors only
        found["torch_cudnn_bf16"] = lambda: torch_call(case, SDPBackend.CUDNN_ATTENTION)
        found["torch_flash_bf16"] = lambda: torch_call(case, SDPBackend.FLASH_ATTENTION)
    if flashinfer:
        for kind in ("bf16", "fp8", "nvfp4"):
            found[f"flashinfer_{kind}"] = lambda kind=kind: flashinfer_call(case, kind)
        found["flashinfer_xqa_fp8"] = lambda: xqa_call(case)
    return found


def measure(case: Case, flashinfer: bool) -> dict[str, dict]:
    """Times of every peer; of one that fails the message, so that a table can say why it has no time."""
    times: dict[str, dict] = {}
    for name, make in makers(case, flashinfer).items():
        mask = "causal" if case.q > 1 and name != "torch_cudnn_bf16" else "none"
        try:
            times[name] = {**time_graph(make()), "mask": mask}
        except Exception as error:  # whatever a peer raises, the others are still timed
            times[name] = {"error": reason(error), "mask": mask}
            print(f"{name} {case}: {times[name]['error']}", file=sys.stderr)
        torch.cuda.empty_cache()
        if case.cache_bytes() > 3e9:
            time.sleep(case.cache_bytes() / CLEARED_PER_SECOND)
    return times


def reason(error: Exception) -> str:
    """The type and the first line that names an error, without folders: the compiler's where a kernel did not build."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "error" in line.lower()] or lines or ["no message"]
    return f"{type(error).__name__}: {re.sub(r'[^ ]*/', '', told[0])[:200]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flashinfer", type=Path, help="folder with what pack_flashinfer.py packed")
    parser.add_argument("--grid", choices=GRIDS, default="all", help="which cases to time")
    args = parser.parse_args()
    if args.flashinfer:
        sys.path.insert(0, str(args.flashinfer))
    rows = []
    for case in GRIDS[args.grid]():
        begin = time.perf_counter()
        rows.append({**asdict(case), "page": PAGE, "peers": measure(case, args.flashinfer is not None)})
        summary = ", ".join(f"{name} {t.get('median_us', 0):.1f}" for name, t in rows[-1]["peers"].items())
        shape = f"b{case.b} kv{case.kv} q{case.q} hq{case.hq} d{case.d} window {case.window}"
        print(f"{shape}: {summary} us ({time.perf_counter() - begin:.1f} s)", flush=True)
        device = torch.cuda.get_device_properties(0)
        result = {"device": device.name, "torch": torch.__version__, "cuda": torch.version.cuda, "rows": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
