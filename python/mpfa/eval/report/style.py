"""Style sheet and the few lines of script (sorting) of the HTML report."""

CSS = """
:root { --ink: #111827; --soft: #6b7280; --line: #e5e7eb; --panel: #ffffff; --back: #f6f7f9; --accent: #2563eb; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1300px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 0 0 4px; }
p { margin: 6px 0 12px; max-width: 78ch; }
.lead { color: var(--soft); margin-bottom: 20px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 20px 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.card b { display: block; font-size: 22px; font-weight: 650; line-height: 1.25; }
.card span { color: var(--soft); font-size: 13px; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 12px; padding: 20px;
  margin: 18px 0; }
section > p { color: #4b5563; }
section svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 5px 6px; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; border-bottom: 2px solid #d1d5db; }
th[data-sort] { cursor: pointer; }
th[data-sort]:hover { color: var(--accent); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--panel); }
td:first-child { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 11.5px; }
tbody tr:hover td { background: #f3f4f6; }
tr.variant td:first-child { color: var(--soft); padding-left: 16px; }
.ok { color: #15803d; } .failed { color: #b91c1c; font-weight: 650; }
ul.checks { list-style: none; padding: 0; margin: 6px 0 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 8px 0 0; font-size: 13.5px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""

SORT_SCRIPT = """
for (const th of document.querySelectorAll('th[data-sort]')) {
  th.addEventListener('click', () => {
    const body = th.closest('table').tBodies[0];
    const up = th.dataset.up !== '1';
    th.dataset.up = up ? '1' : '0';
    const key = row => { const v = parseFloat(row.cells[th.cellIndex].dataset.key); return isNaN(v) ? Infinity : v; };
    [...body.rows].sort((a, b) => (key(a) - key(b)) * (up ? 1 : -1)).forEach(row => body.append(row));
  });
}
"""
