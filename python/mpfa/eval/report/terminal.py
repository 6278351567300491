"""Tables for the terminal."""

from __future__ import annotations

from mpfa.eval.report.columns import RECIPE_COLUMNS, STRESS_COLUMNS, Column, capacity_table
from mpfa.eval.report.numbers import fixed


def render_table(headings: list[str], rows: list[list[str]]) -> str:
    """Monospaced table; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        first, *rest = (
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest])

    return "\n".join([line(headings), "  ".join("-" * w for w in widths), *map(line, rows)])


def _table_of(columns: tuple[Column, ...], rows: list[dict]) -> str:
    return render_table([c.heading for c in columns], [[c.text(row) for c in columns] for row in rows])


def render_terminal(report: dict) -> str:
    """The whole report as text."""
    model, ref, settings = report["model"], report["reference"], report["settings"]
    parts = [
        f"{model['name']}: {settings['context']} tokens prefill in chunks of {settings['chunk']}, "
        f"{settings['decode']} decode; reference {ref['attention']}, perplexity {fixed(ref['ppl'])}",
        _table_of(RECIPE_COLUMNS, report["rows"]),
    ]
    if report["stress"]["rows"]:
        parts += [f"Stress '{report['stress']['name']}'", _table_of(STRESS_COLUMNS, report["stress"]["rows"])]
    parts += [
        "Capacity: GB of one sequence's cache, and sequences that fit beside bf16 weights on an 80 GB card",
        render_table(*capacity_table(report["capacity"])),
    ]
    if report["checks"]:
        parts.append("\n".join(map(_check_line, report["checks"])))
    return "\n\n".join(parts)


def _check_line(check: dict) -> str:
    return f"[{'ok' if check['passed'] else 'FAILED'}] {check['name']}: {check['detail']}"
