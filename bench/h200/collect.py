"""Join the rows of decode_bench with the peers' times and draw them: decode.json, decode.svg, verify.svg, roofline.svg.

    python bench/h200/collect.py FOLDER --out bench/results/h200

FOLDER holds what run.sh wrote: decode.jsonl of decode_bench, append.jsonl of append_bench and decode_peers.json of
peers.py. All flush the level-2 cache by reads and time replayed CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.ticker import NullLocator

from mpfa.eval.report.plots import STYLE, to_svg
from mpfa.eval.report.terminal import render_table

READ_TB_PER_S = 4.54  # measured on an H200; decode_bench divides by the same
SHAPE = ("b", "kv", "q", "hq", "hkv", "d")
COLOURS = {
    "mxfp4": "#15803d",
    "nvfp4": "#1d4ed8",
    "nvfp4+fp8_e4m3": "#7c3aed",
    "fp8_e4m3": "#be123c",
    "bf16": "#0e7490",
}
GREYS = ("#111827", "#6b7280", "#b45309", "#d97706", "#f59e0b", "#fcd34d", "#a16207")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cache(row: dict) -> str:
    """The row's format, or those of K and V."""
    k, v = row["k_format"], row["v_format"]
    return k if k == v else f"{k}+{v}"


def shape_key(row: dict) -> tuple[int, ...]:
    """What a case is known by; without a window the last number is 0."""
    return (*(row[key] for key in SHAPE), window_of(row))


def window_of(row: dict) -> int:
    """Keys that a query row sees, or 0 for all."""
    return row.get("window", 0)


def has_means(row: dict) -> bool:
    """Whether sequences have means of K and V."""
    return row.get("means", False)


def is_decode(row: dict) -> bool:
    """One query row of each of 4 heads a KV head over all keys of a cache without means; the others with peers are
    verify steps, or decode of other heads or of windows."""
    return row["q"] == 1 and heads_of(row) == (32, 8, 128) and not window_of(row) and not has_means(row)


def heads_of(row: dict) -> tuple[int, int, int]:
    """Query heads, KV heads and channels."""
    return row["hq"], row["hkv"], row["d"]


def join(ours: list[dict], peers: dict) -> list[dict]:
    """Rows of ours with what the peers did with the same shape, which is empty for shapes that they did not run.

    `peers` is {name: median_us} and `failed_peers` {name: reason}; the ratios are those of the fastest 16-bit peer and
    of the fastest, `fastest_peer`, to ours.
    """
    by_shape = {shape_key(row): row["peers"] for row in peers["rows"]}
    rows = []
    for row in ours:
        alone = "mask" in row or has_means(row) or row["page"] != 64
        found = {} if alone else by_shape.get(shape_key(row), {})
        medians = {name: round(t["median_us"], 1) for name, t in found.items() if "error" not in t}
        joined = {**row, "peers": medians}
        if failed := {name: t["error"] for name, t in found.items() if "error" in t}:
            joined["failed_peers"] = failed
        if of_16_bits := [t for name, t in medians.items() if name.endswith("bf16")]:
            joined["speedup_over_best_bf16"] = round(min(of_16_bits) / row["median_us"], 2)
        if medians:
            joined["fastest_peer"] = min(medians, key=medians.__getitem__)
            joined["speedup_over_fastest"] = round(medians[joined["fastest_peer"]] / row["median_us"], 2)
        rows.append(joined)
    return rows


def peer_names(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in (*row["peers"], *row.get("failed_peers", ()))))


def table(rows: list[dict]) -> str:
    """Every row that has peers, and below it why one has no time."""
    named = [row for row in rows if row["peers"] or row.get("failed_peers")]
    names = peer_names(named)
    cells = [
        [
            shape_of(row),
            cache(row),
            f"{row['median_us']:.1f}",
            f"{row['share_of_read_bandwidth']:.0%}",
            *(f"{row['peers'][name]:.1f}" if name in row["peers"] else "-" for name in names),
            ratio(row, "speedup_over_best_bf16"),
            ratio(row, "speedup_over_fastest"),
        ]
        for row in named
    ]
    headings = ["case", "cache", "us", "of bandwidth", *names, "best bf16 / ours", "fastest / ours"]
    reasons = {f"{name}: {text}": None for row in named for name, text in row.get("failed_peers", {}).items()}
    return "\n".join([render_table(headings, cells), *reasons])


def shape_of(row: dict) -> str:
    shape = f"b{row['b']} kv {row['kv']}"
    if is_decode(row):
        return shape
    heads = "" if heads_of(row)[1:] == (8, 128) else f", {row['hkv']} KV heads of {row['d']}"
    window = f", window of {window_of(row)}" if window_of(row) else ""
    return f"{shape} q {row['q']} of {row['hq'] // row['hkv']} heads{heads}{window}"


def ratio(row: dict, key: str) -> str:
    return f"{row[key]:.2f}x" if key in row else "-"


def time_plot(panels: dict[str, list[dict]], x: str, xlabel: str) -> str:
    """Microseconds against row[x], a panel for each title."""
    with plt.rc_context(STYLE):
        figure, all_axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.8), squeeze=False)
        for axes, (title, rows) in zip(all_axes[0], panels.items(), strict=True):
            for name, colour in COLOURS.items():
                shown = [row for row in rows if cache(row) == name]
                axes.plot([r[x] for r in shown], [r["median_us"] for r in shown], "o-", color=colour, label=name)
            for name, colour in zip(peer_names(rows), GREYS, strict=False):
                shown = [row for row in rows if cache(row) == "mxfp4" and name in row["peers"]]
                axes.plot([r[x] for r in shown], [r["peers"][name] for r in shown], ".--", color=colour, label=name)
            axes.set(xscale="log", yscale="log", xlabel=xlabel, title=title)
            ticks = sorted({row[x] for row in rows})
            axes.set_xticks(ticks, [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
        all_axes[0][0].set_ylabel("microseconds")
        all_axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        return to_svg(figure)


def decode_panels(rows: list[dict]) -> dict[str, list[dict]]:
    """Rows by number of sequences, where these have several lengths."""
    # A shape that ran twice counts once, so that lines do not go back.
    rows = list({(cache(row), row["b"], row["kv"]): row for row in rows if row["peers"] and is_decode(row)}.values())
    batches = [b for b in sorted({row["b"] for row in rows}) if len({row["kv"] for row in rows if row["b"] == b}) > 2]
    return {f"{b} sequence{'s' * (b > 1)}": [row for row in rows if row["b"] == b] for b in batches}


def verify_rows(rows: list[dict]) -> list[dict]:
    """Rows of the verify steps that peers ran, one row of a sequence included."""
    rows = [row for row in rows if row["peers"] and heads_of(row)[1:] == (8, 128) and not window_of(row)]
    shapes = {(row["b"], row["kv"]) for row in rows if row["q"] > 1}
    found: dict[tuple, dict] = {}
    for row in rows:
        if (row["b"], row["kv"]) in shapes:
            found.setdefault((cache(row), row["q"], row["hq"]), row)  # one row of 4 heads ran twice
    return list(found.values())


def verify_panels(rows: list[dict]) -> dict[str, list[dict]]:
    """Rows of the verify steps by query heads of a KV head."""
    panels: dict[str, list[dict]] = {}
    for row in sorted(verify_rows(rows), key=lambda row: (row["hq"], row["q"])):
        panels.setdefault(f"{row['hq'] // row['hkv']} query heads a KV head", []).append(row)
    return panels


def roofline_plot(rows: list[dict]) -> str:
    """TB/s against the bytes of a call, with the measured read bandwidth as roof."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 4.0))
        for name, colour in COLOURS.items():
            shown = [row for row in rows if cache(row) == name and row["peers"] and is_decode(row)]
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
    (args.out / "decode.svg").write_text(time_plot(decode_panels(rows), "kv", "keys"), encoding="utf-8")
    (args.out / "verify.svg").write_text(time_plot(verify_panels(rows), "q", "tokens of a sequence"), encoding="utf-8")
    (args.out / "roofline.svg").write_text(roofline_plot(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
