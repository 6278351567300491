"""Join the rows of decode_bench with the peers' times and draw them: decode.json, decode.svg, roofline.svg.

    python bench/h200/collect.py FOLDER --out bench/results/h200

FOLDER holds what run.sh wrote: decode.jsonl of decode_bench, append.jsonl of append_bench and decode_peers.json of
peers.py. All flush the level-2 cache by reads and time replayed CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib import pyplot as plt

from mpfa.eval.report.plots import STYLE, to_svg
from mpfa.eval.report.terminal import render_table

READ_TB_PER_S = 4.54  # measured on an H200; decode_bench divides by the same
COLOURS = {
    "mxfp4": "#15803d",
    "nvfp4": "#1d4ed8",
    "nvfp4+fp8_e4m3": "#7c3aed",
    "fp8_e4m3": "#be123c",
    "bf16": "#0e7490",
}
GREYS = ("#111827", "#6b7280", "#b45309", "#d97706", "#f59e0b")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cache(row: dict) -> str:
    """The row's format, or those of K and V."""
    k, v = row["k_format"], row["v_format"]
    return k if k == v else f"{k}+{v}"


def join(ours: list[dict], peers: dict) -> list[dict]:
    """Rows of ours with `peers`, {name: median_us}, for the shapes that the peers ran, and the best 16-bit peer."""
    times = {(row["b"], row["kv"]): row["peers"] for row in peers["rows"]}
    rows = []
    for row in ours:
        plain = row["q"] == 1 and row["hq"] == 32
        found = times.get((row["b"], row["kv"]), {}) if plain else {}
        medians = {name: round(t["median_us"], 1) for name, t in found.items()}
        best = min((t for name, t in medians.items() if name.endswith("bf16")), default=None)
        rows.append({**{k: v for k, v in row.items() if k != "peers"}, "peers": medians})
        if best:
            rows[-1]["speedup_over_best_bf16"] = round(best / row["median_us"], 2)
    return rows


def table(rows: list[dict]) -> str:
    named = [row for row in rows if row["peers"]]
    names = list(named[0]["peers"])
    cells = [
        [
            f"b{row['b']} kv {row['kv']}",
            cache(row),
            f"{row['median_us']:.1f}",
            f"{row['share_of_read_bandwidth']:.0%}",
            *(f"{row['peers'][name]:.1f}" for name in names),
            f"{row['speedup_over_best_bf16']:.2f}x",
        ]
        for row in named
    ]
    return render_table(["case", "cache", "us", "of bandwidth", *names, "best bf16 / ours"], cells)


def time_plot(rows: list[dict]) -> str:
    """Microseconds against keys, one panel per number of sequences."""
    # A shape that ran twice counts once, so that lines do not go back.
    rows = list({(cache(row), row["b"], row["kv"]): row for row in rows if row["peers"]}.values())
    batches = [b for b in sorted({row["b"] for row in rows}) if len({row["kv"] for row in rows if row["b"] == b}) > 2]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(batches), figsize=(4.2 * len(batches), 3.8), squeeze=False)
        for axes, batch in zip(panels[0], batches, strict=True):
            of_batch = [row for row in rows if row["b"] == batch]
            for name, colour in COLOURS.items():
                shown = [row for row in of_batch if cache(row) == name]
                axes.plot([r["kv"] for r in shown], [r["median_us"] for r in shown], "o-", color=colour, label=name)
            shown = [row for row in of_batch if row["k_format"] == "mxfp4"]
            for name, colour in zip(shown[0]["peers"], GREYS, strict=False):
                axes.plot([r["kv"] for r in shown], [r["peers"][name] for r in shown], ".--", color=colour, label=name)
            axes.set(xscale="log", yscale="log", xlabel="keys", title=f"{batch} sequence{'s' * (batch > 1)}")
        panels[0][0].set_ylabel("microseconds")
        panels[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        return to_svg(figure)


def roofline_plot(rows: list[dict]) -> str:
    """TB/s against the bytes of a call, with the measured read bandwidth as roof."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 4.0))
        for name, colour in COLOURS.items():
            shown = [row for row in rows if cache(row) == name and row["peers"]]
            megabytes = [row["tb_per_s"] * row["median_us"] for row in shown]
            axes.plot(megabytes, [row["tb_per_s"] for row in shown], "o", color=colour, label=name)
        axes.axhline(READ_TB_PER_S, color="#111827", linewidth=1, label="read bandwidth")
        axes.set(xscale="log", ylim=(0, 5), xlabel="megabytes read by a call", ylabel="TB/s")
        axes.legend(fontsize=8, loc="lower right")
        return to_svg(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    peers = json.loads((args.run / "decode_peers.json").read_text(encoding="utf-8"))
    rows = join(lines(args.run / "decode.jsonl"), peers)
    machine = {key: peers[key] for key in ("device", "torch", "cuda")}
    result = {"kind": "decode", "machine": {**machine, "read_bandwidth_tb_per_s": READ_TB_PER_S}, "rows": rows}
    appended = {"kind": "append", "machine": machine, "rows": lines(args.run / "append.jsonl")}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "append.json").write_text(json.dumps(appended, indent=1) + "\n", encoding="utf-8")
    (args.out / "decode.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (args.out / "decode.svg").write_text(time_plot(rows), encoding="utf-8")
    (args.out / "roofline.svg").write_text(roofline_plot(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
