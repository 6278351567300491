"""Plots of a report as inline SVG."""

from __future__ import annotations

import io
import math
import re

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator

from mpfa.eval.settings import BASELINE

# Average width of a cached element, by compression against bf16; the bounds lie between the formats' sizes.
GROUPS = (
    ("16 bits", 1.1, "#6b7280"),
    ("about 8 bits", 2.1, "#2563eb"),
    ("about 6 bits", 2.95, "#7c3aed"),
    ("about 4 bits", math.inf, "#ea580c"),
)
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "mpfa",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": "#374151",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "xtick.color": "#4b5563",
    "ytick.color": "#4b5563",
    "text.color": "#111827",
    "legend.frameon": False,
}
FLOOR = 1e-9
MAX_CURVES = 8


def group_of(row: dict) -> tuple[str, str]:
    """(name, colour) of the cache width a row belongs to."""
    name, _, colour = next(group for group in GROUPS if row["compression_vs_bf16"] < group[1])
    return name, colour


def is_variant(row: dict) -> bool:
    """Whether a row is a named recipe with overridden fields."""
    return "," in row["recipe"]


def plottable(rows: list[dict], *fields: str) -> list[dict]:
    """Rows whose figures can stand on a logarithmic axis."""
    return [row for row in rows if all(math.isfinite(row[f]) for f in fields)]


def to_svg(figure) -> str:
    """SVG element of a figure, without XML prologue and fixed size, so that the page can scale it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"(?: height="[^"]*")?', r"\1", svg, count=1)


def _group_legend(axes, rows: list[dict], **kwargs) -> None:
    present = dict(group_of(row) for row in rows)
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", color=colour, label=name)
        for name, _, colour in GROUPS
        if name in present
    ]
    if any(map(is_variant, rows)):
        handles.append(
            plt.Line2D([], [], marker="o", linestyle="", color="#374151", mfc="white", label="with the override")
        )
    axes.legend(handles=handles, **kwargs)


def _spread(values: np.ndarray, gap: float) -> np.ndarray:
    """Move sorted positions apart to at least `gap`, keeping the middle of every cluster."""
    clusters: list[list[float]] = []
    for value in values:
        clusters.append([value])
        while len(clusters) > 1 and _top(clusters[-2], gap) + gap > _bottom(clusters[-1], gap):
            last = clusters.pop()
            clusters[-1] += last
    return np.concatenate([np.linspace(_bottom(c, gap), _top(c, gap), len(c)) for c in clusters])


def _bottom(cluster: list[float], gap: float) -> float:
    return sum(cluster) / len(cluster) - gap * (len(cluster) - 1) / 2


def _top(cluster: list[float], gap: float) -> float:
    return sum(cluster) / len(cluster) + gap * (len(cluster) - 1) / 2


def _label_column(
    axes, points: list[tuple[float, float, str, str]], x_label: float, gap: float, align: str = "left"
) -> None:
    """Names (x, log10 y, name, colour) in one column at x_label, spread apart, with leader lines."""
    points = sorted(points, key=lambda p: p[1])
    for (x, y, name, colour), at in zip(points, _spread(np.array([p[1] for p in points]), gap), strict=True):
        axes.annotate(
            name,
            xy=(x, 10**y),
            xytext=(x_label, 10**at),
            color=colour,
            fontsize=8.5,
            va="center",
            ha=align,
            arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.35, "linewidth": 0.7, "shrinkB": 4},
        )


def scatter_kl_bytes(rows: list[dict]) -> str:
    """Mean KL over bytes per token; an override is a hollow point joined to its recipe."""
    rows = plottable(rows, "kl_mean", "kv_bytes_per_token")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(10, 6.2))
        named = {row["recipe"]: row for row in rows if not is_variant(row)}
        for row in rows:
            x, y, colour = row["kv_bytes_per_token"], max(row["kl_mean"], FLOOR), group_of(row)[1]
            base = named.get(row["recipe"].split(",")[0])
            if is_variant(row) and base:
                ends = [base["kv_bytes_per_token"], x], [max(base["kl_mean"], FLOOR), y]
                axes.plot(*ends, color=colour, alpha=0.35, linewidth=1)
            face = "white" if is_variant(row) else colour
            axes.plot(x, y, "o", color=colour, mfc=face, markersize=7, zorder=3)
        axes.set_yscale("log")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("cache bytes per token (all layers)")
        axes.set_ylabel("mean KL(reference || recipe), nats")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 1.32, high * 1.12)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
        axes.xaxis.set_minor_locator(NullLocator())
        _label_scatter(axes, list(named.values()))
        _group_legend(axes, rows, loc="upper right")
        return to_svg(figure)


def _label_scatter(axes, rows: list[dict]) -> None:
    """Names beside the points of each cache width: left of the smallest caches, right of the others."""
    gap = 0.031 * np.diff(np.log10(axes.get_ylim()))[0]
    groups = [[r for r in rows if group_of(r)[0] == name] for name, *_ in reversed(GROUPS)]
    for index, members in enumerate(filter(None, groups)):
        points = [
            (r["kv_bytes_per_token"], math.log10(max(r["kl_mean"], FLOOR)), r["recipe"], group_of(r)[1])
            for r in members
        ]
        if index == 0:
            _label_column(axes, points, min(p[0] for p in points) / 1.05, gap, align="right")
        else:
            _label_column(axes, points, max(p[0] for p in points) * 1.05, gap)


def kl_ranges(rows: list[dict]) -> str:
    """Mean and 99th percentile of the KL, one line per recipe, best first."""
    rows = sorted(plottable(rows, "kl_mean", "kl_p99"), key=lambda row: row["kl_mean"])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(10, 0.8 + 0.24 * len(rows)))
        for i, row in enumerate(rows):
            mean, p99, colour = max(row["kl_mean"], FLOOR), max(row["kl_p99"], FLOOR), group_of(row)[1]
            axes.plot([mean, p99], [i, i], color=colour, linewidth=2, alpha=0.35)
            axes.plot(mean, i, "o", color=colour, markersize=6, mfc="white" if is_variant(row) else colour)
            axes.plot(p99, i, "|", color=colour, markersize=11, markeredgewidth=2)
        axes.set_xscale("log")
        axes.set_yticks(range(len(rows)), [row["recipe"] for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("KL per token, nats: mean (dot) to 99th percentile (bar)")
        axes.grid(axis="y", visible=False)
        _group_legend(axes, rows, loc="upper right")
        return to_svg(figure)


def choose_curves(rows: list[dict]) -> list[dict]:
    """At most MAX_CURVES named recipes: the 16-bit one and an even choice by error of the others."""
    named = sorted((r for r in rows if not is_variant(r)), key=lambda r: r["worst_layer_error"])
    rest = [r for r in named if r["recipe"] != BASELINE]
    wanted = min(len(rest), MAX_CURVES - 1)
    picks = {round(i) for i in np.linspace(0, len(rest) - 1, wanted)} if wanted else set()
    return [r for r in named if r["recipe"] == BASELINE] + [rest[i] for i in sorted(picks)]


def layer_curves(rows: list[dict]) -> str:
    """Relative L2 error of the attention output, layer by layer."""
    chosen = choose_curves([r for r in rows if all(map(math.isfinite, r["layer_errors"]))])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(10, 4.8))
        colours = plt.get_cmap("viridis")(np.linspace(0, 0.88, len(chosen)))
        points = []
        for row, colour in zip(chosen, colours, strict=True):
            errors = np.maximum(row["layer_errors"], FLOOR)
            axes.plot(errors, color=colour, linewidth=1.8, marker="o", markersize=3)
            axes.plot(row["worst_layer"], row["worst_layer_error"], "o", color=colour, markersize=8, mfc="none")
            points.append((len(errors) - 1, math.log10(errors[-1]), row["recipe"], colour))
        axes.set_yscale("log")
        axes.set_xlabel("layer (ring: worst layer of the recipe)")
        axes.set_ylabel("relative L2 of the attention output")
        if points:
            last = points[0][0]
            axes.set_xlim(-0.5, last * 1.02 + 0.5)
            span = np.diff(np.log10(axes.get_ylim()))[0]
            _label_column(axes, points, last * 1.035 + 0.5, 0.045 * span)
        return to_svg(figure)


def speed_bars(rows: list[dict]) -> str:
    """Tokens per second of both phases."""
    fields = (("prefill_tokens_per_second", "prefill, tokens/s"), ("decode_tokens_per_second", "decode, tokens/s"))
    with plt.rc_context(STYLE):
        height = 0.8 + 0.22 * len(rows)
        figure, panels = plt.subplots(1, 2, figsize=(10, height), sharey=True, gridspec_kw={"wspace": 0.06})
        for axes, (field, label) in zip(panels, fields, strict=True):
            axes.barh(range(len(rows)), [r[field] for r in rows], color=[group_of(r)[1] for r in rows], height=0.72)
            axes.set_xlabel(label)
            axes.grid(axis="y", visible=False)
        panels[0].set_yticks(range(len(rows)), [r["recipe"] for r in rows])
        panels[0].set_ylim(len(rows) - 0.4, -0.6)
        return to_svg(figure)


def stress_pairs(stress_rows: list[dict]) -> str:
    """KL without (dot) and with the stress (triangle) for each stressed recipe."""
    usable = [
        r for r in stress_rows if math.isfinite(r["stressed"]["kl_mean"]) and math.isfinite(r["unstressed"]["kl_mean"])
    ]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(10, 1.0 + 0.34 * len(usable)))
        for i, row in enumerate(usable):
            plain, stressed = (max(row[k]["kl_mean"], FLOOR) for k in ("unstressed", "stressed"))
            colour = group_of(row["unstressed"])[1]
            axes.plot([plain, stressed], [i, i], color=colour, linewidth=2, alpha=0.35)
            axes.plot(plain, i, "o", color=colour, markersize=7, label="unstressed" if i == 0 else None)
            axes.plot(stressed, i, "^", color="#dc2626", markersize=8, label="stressed" if i == 0 else None)
        axes.set_xscale("log")
        axes.set_yticks(range(len(usable)), [row["recipe"] for row in usable])
        axes.set_ylim(len(usable) - 0.4, -0.6)
        axes.set_xlabel("mean KL, nats")
        axes.grid(axis="y", visible=False)
        if usable:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return to_svg(figure)
