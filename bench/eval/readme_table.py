"""Print the table of README.md from a result of run_eval.sh.

    build/venv/bin/python bench/eval/readme_table.py bench/results/eval/smollm2-135m.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEADER = "| recipe | KV bytes per token | smaller | perplexity | KL mean | KL p99 | KL decode | top-1 agrees |"
RULE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"


def table(report: dict) -> list[str]:
    """Rows from the least to the most bytes saved, as the report has them."""
    lines = [HEADER, RULE]
    for row in report["rows"]:
        lines.append(
            f"| `{row['recipe']}` | {row['kv_bytes_per_token']:.0f} | {row['compression_vs_bf16']:.2f}x "
            f"| {row['ppl']:.2f} | {row['kl_mean']:.4f} | {row['kl_p99']:.3f} | {row['kl_decode']:.4f} "
            f"| {100 * row['top1_agreement']:.1f} % |"
        )
    return lines


def stress_table(report: dict) -> list[str]:
    """Mean KL without and with the constant added to every key."""
    lines = ["| recipe | KL | KL with the constant | ratio |", "| --- | ---: | ---: | ---: |"]
    for row in report["stress"]["rows"]:
        plain, stressed = row["unstressed"]["kl_mean"], row["stressed"]["kl_mean"]
        lines.append(f"| `{row['recipe']}` | {plain:.4f} | {stressed:.4f} | {row['kl_ratio']:.2f} |")
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("readme_table: give one JSON file, for example bench/results/eval/smollm2-135m.json")
    result = json.loads(Path(sys.argv[1]).read_text())
    print("\n".join([*table(result), "", *stress_table(result)]))
