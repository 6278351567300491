"""Decode of torch's scaled_dot_product_attention over a contiguous 16-bit cache, timed as decode_bench times ours.

One JSON row a line: {"b", "kv", "backend", "median_us"}; the backends that torch offers for the shape.
"""

import json
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
SHAPES = [(1, 4096), (1, 16384), (1, 32768), (1, 131072), (8, 4096), (8, 16384), (8, 32768), (32, 4096), (32, 16384), (32, 32768)]


def measure(call, flush: torch.Tensor, runs: int = 15) -> float:
    """Median time of a graph replay in us, with clean lines of `flush` in the second-level cache before each."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(runs + 3):
        flush.max()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times[3:])


def main() -> int:
    flush = torch.ones(64 << 20, dtype=torch.int32, device="cuda")
    for batch, kv in SHAPES:
        q = torch.randn(batch, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(batch, 8, kv, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for name, backend in BACKENDS.items():

            def call(backend=backend):
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

            try:
                us = measure(call, flush)
            except RuntimeError as error:
                print(f"{name} at b {batch} kv {kv}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            print(json.dumps({"b": batch, "kv": kv, "backend": name, "median_us": round(us, 1)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
