"""Table and plot of the rows of one kind of work."""

from __future__ import annotations

from matplotlib import pyplot as plt

from mpfa.eval.report.plots import STYLE, to_svg
from mpfa.eval.report.terminal import render_table

OTHERS = ("#111827", "#6b7280", "#9ca3af", "#b45309", "#d97706", "#f59e0b", "#fbbf24", "#fcd34d")


def _case_of(row: dict) -> str:
    text = f"b{row['b']} kv {row['kv']}"
    return text if row["d"] == 128 else f"{text} d{row['d']}"


def table(kind: str, rows: list[dict]) -> str:
    """Milliseconds are medians; the last column compares with the fastest dtype of PyTorch."""
    peers = dict.fromkeys(name for row in rows for name in row["peers"])
    headings = ["case", "recipe", "ms", "GB/s", "of memory", "GFLOP/s", *peers, "best torch / ours"]
    cells = [
        [
            f"{kind} {_case_of(row)}",
            row["recipe"],
            f"{row['median_ms']:.2f}",
            f"{row['gb_per_s']:.2f}",
            f"{row['share_of_memory_bandwidth']:.0%}",
            f"{row['gflop_per_s']:.0f}" if row["gflop_per_s"] else "-",
            *(f"{row['peers'][name]:.2f}" if name in row["peers"] else "-" for name in peers),
            f"{row['speedup_over_best_torch']:.2f}x",
        ]
        for row in rows
    ]
    return render_table(headings, cells)


def plot(kind: str, rows: list[dict]) -> str:
    """SVG: one group of bars per case, median milliseconds with the range of all calls."""
    cases = list(dict.fromkeys(map(_case_of, rows)))
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    names = [*recipes, *dict.fromkeys(name for row in rows for name in row["peers"])]
    colours = [*plt.get_cmap("viridis")([i / max(len(recipes), 2) for i in range(len(recipes))]), *OTHERS]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(max(6.0, 1.6 * len(cases) + 2.5), 4.6))
        width = 0.86 / len(names)
        for index, (name, colour) in enumerate(zip(names, colours, strict=False)):
            times = [_times(rows, case, name) for case in cases]
            at = [i + (index - (len(names) - 1) / 2) * width for i, t in enumerate(times) if t]
            shown = [t for t in times if t]
            middle = [t["median_ms"] for t in shown]
            spread = [
                [t["median_ms"] - t["min_ms"] for t in shown],
                [t["max_ms"] - t["median_ms"] for t in shown],
            ]
            axes.bar(at, middle, width, color=colour, label=name, yerr=spread, error_kw={"linewidth": 0.7})
        axes.set_yscale("log")
        axes.set_xticks(range(len(cases)), cases)
        axes.set_ylabel(f"{kind}: milliseconds, median (line: fastest to slowest call)")
        axes.grid(axis="x", visible=False)
        axes.legend(ncols=2, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        return to_svg(figure)


def _times(rows: list[dict], case: str, name: str) -> dict | None:
    """Times of a recipe or a peer in a case."""
    for row in rows:
        if _case_of(row) == case and (row["recipe"] == name or name in row["peers"]):
            if row["recipe"] == name:
                return row
            return {"median_ms": row["peers"][name], **row["peer_ranges"][name]}
    return None
