"""One self-contained HTML page: no external links, plots inline."""

from __future__ import annotations

import math
from html import escape

from mpfa.eval.checks import BASELINE_KL
from mpfa.eval.report import plots
from mpfa.eval.report.columns import RECIPE_COLUMNS, STRESS_COLUMNS, Column, capacity_table
from mpfa.eval.report.numbers import fixed, small
from mpfa.eval.report.style import CSS, SORT_SCRIPT
from mpfa.eval.settings import BASELINE

KL_BEST, KL_WORST = 1e-4, 1.0
MOSTLY_PACKED = 1.3


def render_html(report: dict) -> str:
    """The page for a report of `evaluate`."""
    parts = [_head(report), _cards(report), _checks(report["checks"]), _figures(report["rows"])]
    if report["stress"]["rows"]:
        parts.append(_stress(report["stress"]["rows"]))
    parts += [_capacity(report["capacity"]), _method(), _environment(report)]
    title = f"MpFA evaluation: {escape(report['model']['name'])}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{CSS}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + f"\n</main><script>{SORT_SCRIPT}</script></body></html>\n"
    )


def _section(title: str, explanation: str, body: str) -> str:
    return f"<section><h2>{title}</h2><p>{explanation}</p>{body}</section>"


def _head(report: dict) -> str:
    model, settings = report["model"], report["settings"]
    window = f", sliding window {model['sliding_window']}" if model["sliding_window"] else ""
    return (
        f"<h1>Attention recipes on {escape(model['name'])}</h1>"
        f'<p class="lead">{model["parameters"] / 1e6:.0f} M parameters, {model["layers"]} layers, '
        f"{model['q_heads']} query and {model['kv_heads']} KV heads of {model['head_dim']}{window}. "
        f"{settings['context']} tokens prefilled in chunks of {settings['chunk']}, then {settings['decode']} decoded "
        f"one by one, all teacher-forced on {escape(report['text']['name'])}. Every recipe reads its packed cache; "
        "the reference is the model's own eager attention in float32.</p>"
    )


def _cards(report: dict) -> str:
    rows = [r for r in report["rows"] if math.isfinite(r["kl_mean"])]
    cards = [(fixed(report["reference"]["ppl"]), "perplexity of the reference")]
    cards += [
        (small(r["kl_mean"]), f"mean KL of {BASELINE}, must be below {BASELINE_KL:g}")
        for r in rows
        if r["recipe"] == BASELINE
    ]
    four_bit = [r for r in rows if plots.group_of(r)[0] == plots.GROUPS[-1][0] and is_mostly_packed(r)]
    if four_bit:
        best = min(four_bit, key=larger_kl)
        label = f"smaller cache with {best['recipe']}, the 4-bit recipe closest to the reference in both phases"
        cards.append((f"{best['compression_vs_bf16']:.2f}x", label))
        cards.append((small(larger_kl(best)), f"its mean KL in the worse phase; perplexity {fixed(best['ppl'])}"))
    passed = sum(check["passed"] for check in report["checks"])
    cards.append((f"{passed} of {len(report['checks'])}", "checks passed"))
    items = "".join(f'<div class="card"><b>{escape(b)}</b><span>{escape(text)}</span></div>' for b, text in cards)
    return f'<div class="cards">{items}</div>'


def larger_kl(row: dict) -> float:
    """KL of the worse phase: a recipe that prefills in 16 bits is not compared by its prefill."""
    return max(row["kl_prefill"], row["kl_decode"])


def is_mostly_packed(row: dict) -> bool:
    """Whether the run really read packed tokens: on a short text some recipes still hold most of them in 16 bits."""
    return row["kv_bytes_in_use_per_token"] < MOSTLY_PACKED * row["kv_bytes_per_token"]


def _checks(checks: list[dict]) -> str:
    items = "".join(
        f'<li><span class="{"ok" if c["passed"] else "failed"}">{"passed" if c["passed"] else "FAILED"}</span> '
        f"{escape(c['name'])}: {escape(c['detail'])}</li>"
        for c in checks
    )
    return f'<section><h2>Checks</h2><ul class="checks">{items}</ul></section>' if checks else ""


def _figures(rows: list[dict]) -> str:
    return "\n".join(
        [
            _section(
                "Divergence and cache size",
                "Lower and further left is better. A hollow point is the same recipe with one field overridden "
                "(here mostly centring of K), joined to it by a line. Bytes are those of packed tokens; a recipe that "
                "keeps the first or newest tokens in 16 bits, or prefills in 16 bits, uses more and errs less on a "
                "short text: compare the columns 'in use' and 'KL decode'.",
                plots.scatter_kl_bytes(rows),
            ),
            _section("All recipes", "Click a heading to sort; hover it for its meaning.", _recipe_table(rows)),
            _section(
                "Spread over tokens",
                "A mean hides rare tokens on which a recipe goes wrong; the 99th percentile shows them.",
                plots.kl_ranges(rows),
            ),
            _section(
                "Error by layer",
                "Relative L2 distance of a layer's attention output from the same layer of the reference run. It "
                "includes what earlier layers already got wrong, since each layer sees the output of its own run.",
                plots.layer_curves(rows),
            ),
            _section(
                "Speed on this machine",
                "The whole model with float32 weights; a small one spends most of its time on them, not on attention.",
                plots.speed_bars(rows),
            ),
        ]
    )


def _recipe_table(rows: list[dict]) -> str:
    return _table(RECIPE_COLUMNS, rows)


def _table(columns: tuple[Column, ...], rows: list[dict]) -> str:
    head = "".join(
        f'<th title="{escape(c.meaning)}"{" data-sort" if c.key else ""}>{escape(c.heading)}</th>' for c in columns
    )
    body = "".join(
        f"<tr{' class=variant' if plots.is_variant(row) else ''}>{''.join(_cell(c, row) for c in columns)}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(column: Column, row: dict) -> str:
    key = f' data-key="{column.key(row)}"' if column.key else ""
    shade = f' style="background:{kl_colour(column.key(row))}"' if column.is_divergence else ""
    return f"<td{key}{shade}>{escape(column.text(row))}</td>"


def kl_colour(kl: float) -> str:
    """Green for a KL at KL_BEST, red at KL_WORST, on a logarithmic scale."""
    if not math.isfinite(kl):
        return "hsl(0 75% 85%)"
    position = math.log(max(kl, KL_BEST) / KL_BEST) / math.log(KL_WORST / KL_BEST)
    return f"hsl({130 * (1 - min(position, 1)):.0f} 65% 90%)"


def _stress(rows: list[dict]) -> str:
    return _section(
        "Stress: a constant added to every key",
        "One channel of each head gets +300 and four get +-30, the same for every token, after RoPE. The softmax does "
        "not change, so the reference is the unstressed one. Without centring a 4-bit block spends its range on the "
        "constant.",
        plots.stress_pairs(rows) + _table(STRESS_COLUMNS, rows),
    )


def _capacity(capacity: list[dict]) -> str:
    headings, lines = capacity_table(capacity)
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return _section(
        "Capacity of larger models",
        "GB (10<sup>9</sup> bytes) of one sequence's cache, and how many such sequences fit on an 80 GB card beside "
        "bf16 weights. Activations, fragmentation and tokens kept in 16 bits beside the pages are not counted.",
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>',
    )


def _method() -> str:
    terms = "".join(
        f"<dt>{escape(c.heading)}</dt><dd>{escape(c.meaning)}</dd>" for c in RECIPE_COLUMNS if c.heading != "recipe"
    )
    return f"<section><h2>What the columns mean</h2><dl>{terms}</dl></section>"


def _environment(report: dict) -> str:
    machine, settings, text = report["machine"], report["settings"], report["text"]
    flags = ", ".join(machine["flags"])
    facts = {
        "date": report["date"],
        "processor": f"{machine['cpu']}, {machine['cores']} cores, {settings['threads']} threads; {flags}",
        "software": ", ".join(f"{name} {number}" for name, number in report["versions"].items()),
        "model weights": f"sha256 {report['model']['sha256']}",
        "text": f"{text['name']}, sha256 {text['sha256']}",
        "static means": f"calibrated on {settings['calibration_tokens']} tokens after the evaluated window",
    }
    if not settings["calibration_tokens"]:
        del facts["static means"]
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return f"<section><h2>Environment</h2><dl>{items}</dl></section>"
