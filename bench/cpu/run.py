"""Time MpFA on the CPU beside PyTorch's attention in the same run, for decode, prefill and append.

Writes decode.json, prefill.json and append.json and plots of them. Every contestant of a case runs in turn, round
after round, on all cores. Caches are not flushed between calls; where a state would fit in twice the level-2 caches,
calls alternate between copies that together do not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ggml
import peers
import report
import torch
from cases import KINDS, RECIPES, Case, contestant, effort_for, grid, operand_format
from timing import Contestant, Effort, measure
from tqdm import tqdm

from mpfa.eval.machine import available_memory, describe_machine, describe_versions

ROOT = Path(__file__).resolve().parents[2]
BANDWIDTH_BYTES = 2**30


def read_bandwidth(total: int) -> float:
    """Bytes per second at which all cores read `total` bytes of float32: the best of five sums."""
    data = torch.ones(total // 4)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - begin)
    return total / best


def _check_memory(case: Case, recipes: Sequence[str]) -> None:
    """A case keeps one state per contestant; float32, two 16-bit and MpFA's, of which none is above 16 bits."""
    elements = 2 * case.b * case.kv * case.hkv * case.d
    needed = elements * (4 + 2 + 2 + 2 * len(recipes))
    if needed > available_memory():
        raise SystemExit(
            f"{case.title()} needs {needed / 1e9:.1f} GB and {available_memory() / 1e9:.1f} GB are available; "
            "free memory, or choose a smaller grid with --quick or --only"
        )


def _row(case: Case, ours: Contestant, times: dict, others: Sequence[str], bandwidth: float) -> dict:
    own = times[ours.name]
    rate = ours.bytes_read / own["median_ms"] * 1e-6
    best = min((n for n in others if n.startswith("torch_")), key=lambda n: times[n]["median_ms"])
    return {
        **{field: getattr(case, field) for field in ("b", "q_len", "kv", "hq", "hkv", "d")},
        "recipe": ours.name,
        "k_format": operand_format(ours.name, "k"),
        "v_format": operand_format(ours.name, "v"),
        "threads": torch.get_num_threads(),
        **own,
        "bytes_read": ours.bytes_read,
        "gb_per_s": rate,
        "share_of_memory_bandwidth": rate * 1e9 / bandwidth,
        "gflop_per_s": case.flop() / own["median_ms"] * 1e-6,
        "best_torch": best,
        "speedup_over_best_torch": times[best]["median_ms"] / own["median_ms"],
        "peers": {name: times[name]["median_ms"] for name in others},
        "peer_ranges": {name: {end: times[name][end] for end in ("min_ms", "max_ms")} for name in others},
    }


def measure_case(
    case: Case, recipes: Sequence[str], effort: Effort, bandwidth: float, library: ggml.Ggml | None
) -> list[dict]:
    """One row per recipe."""
    _check_memory(case, recipes)
    ours = [contestant(case, recipe) for recipe in recipes]
    others = peers.torch_contestants(case) + (ggml.contestants(library, case) if library else [])
    effort = effort_for(case, effort)
    times = measure([*ours, *others], effort)
    names = [c.name for c in others]
    return [{**_row(case, c, times, names, bandwidth), "rounds": effort.rounds} for c in ours]


def run(
    cases: Sequence[Case],
    out: Path,
    *,
    recipes: Sequence[str] = RECIPES,
    effort: Effort = Effort(),
    library: ggml.Ggml | None = None,
    bandwidth_bytes: int = BANDWIDTH_BYTES,
) -> list[Path]:
    """Measures the cases and writes <kind>.json and <kind>.svg into `out`; returns the JSON files."""
    bandwidth = read_bandwidth(bandwidth_bytes)
    machine = {**describe_machine(), "read_bandwidth_gb_per_s": bandwidth * 1e-9}
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with tqdm(total=len(cases), unit="case", file=sys.stderr) as progress:
        for kind in KINDS:
            rows = []
            for case in (c for c in cases if c.kind == kind):
                progress.set_description(case.title())
                rows += measure_case(case, recipes, effort, bandwidth, library)
                progress.update()
            if not rows:
                continue
            result = {
                "kind": kind,
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "machine": machine,
                "versions": {**describe_versions(), **({"ggml": library.version()} if library else {})},
                "effort": vars(effort),
                "rows": rows,
            }
            path = out / f"{kind}.json"
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            path.with_suffix(".svg").write_text(report.plot(kind, rows), encoding="utf-8")
            progress.write(f"\n{report.table(kind, rows)}\n", file=sys.stdout)
            written.append(path)
    return written


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small cases with little effort, half a minute")
    parser.add_argument("--only", choices=KINDS, help="one kind of work")
    parser.add_argument("--ggml", type=Path, metavar="PATH", help="folder of ggml's shared libraries: a peer")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "cpu", help="folder of the results")
    args = parser.parse_args(argv)
    threads = describe_machine()["cores"]
    torch.set_num_threads(threads)
    try:
        library = ggml.Ggml(args.ggml, threads) if args.ggml else None
    except (OSError, AttributeError) as error:
        parser.error(str(error))
    cases = [c for c in grid(args.quick) if args.only in (None, c.kind)]
    effort = Effort(rounds=2, burst_s=0.02) if args.quick else Effort()
    for path in run(cases, args.out, effort=effort, library=library):
        print(path)


if __name__ == "__main__":
    main()
