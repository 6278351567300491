"""Write the tables of README.md and docs/notes/hopper/results.md whose figures are in bench/results/h200/decode.json.

    python bench/h200/pages.py

Replaces what lies between <!-- NAME: bench/h200/pages.py --> and <!-- end -->; a test says whether pages and results
agree, so run it after collect.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from collect import READ_TB_PER_S, cache, has_means, heads_of, is_decode, verify_rows, window_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "h200" / "decode.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "notes" / "hopper" / "results.md")
FORMATS = {
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "int4_g64": "int4_g64",
    "mxfp4_f32": "mxfp4_f32",
    "nvfp4+fp8_e4m3": "nvfp4 + fp8_e4m3",
    "fp8_e4m3": "fp8_e4m3",
    "int8": "int8",
    "bf16": "bf16",
}
COMPARED = {
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "int4_g64": "int4_g64",
    "nvfp4+fp8_e4m3": "nvfp4 + fp8",
    "fp8_e4m3": "fp8",
}
PEERS = {
    "PyTorch bf16": ("torch_cudnn_bf16", "torch_flash_bf16"),
    "FlashInfer bf16": ("flashinfer_bf16",),
    "fp8": ("flashinfer_fp8", "flashinfer_xqa_fp8"),
    "nvfp4": ("flashinfer_nvfp4",),
}

PEER_NAMES = {
    "torch_cudnn_bf16": "PyTorch, cuDNN bf16",
    "torch_flash_bf16": "PyTorch, flash bf16",
    "flashinfer_bf16": "FlashInfer bf16",
    "flashinfer_fp8": "FlashInfer fp8",
    "flashinfer_xqa_fp8": "FlashInfer XQA fp8",
    "flashinfer_nvfp4": "FlashInfer nvfp4",
}


def three_digits(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is left-aligned, the others right-aligned."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def compared(rows: dict[str, dict]) -> list[str]:
    """Cells of ours and of the peers, of the rows of one shape by format."""
    peers = rows["mxfp4"]["peers"]
    ours = [rows[name]["median_us"] for name in COMPARED]
    return [*map(three_digits, ours), *(three_digits(min_of(peers, names)) for names in PEERS.values())]


def min_of(peers: dict[str, float], names: tuple[str, ...]) -> float | None:
    return min((peers[name] for name in names if name in peers), default=None)


def by_shape(rows: list[dict]) -> dict[tuple[int, int], dict[str, dict]]:
    """{(sequences, keys): {format: row}} of decode."""
    shapes: dict[tuple[int, int], dict[str, dict]] = {}
    for row in rows:
        if is_decode(row):
            shapes.setdefault((row["b"], row["kv"]), {}).setdefault(cache(row), row)
    return shapes


def decode_table(rows: list[dict]) -> str:
    """Ours beside the peers by sequences and keys."""
    shapes = by_shape(rows)
    shown = ((1, 4096), (1, 32768), (8, 32768), (32, 8192), (32, 32768), (64, 32768))
    lines = [[f"{b} x {kv // 1024}k", *compared(shapes[b, kv])] for b, kv in shown]
    return markdown(("sequences x keys", *COMPARED.values(), *PEERS), lines)


def every_decode_table(rows: list[dict]) -> str:
    """Ours, with the share of the bandwidth where it is much, and the peers, by sequences and keys."""
    shapes = by_shape(rows)
    lengths = {1: (4, 16, 32, 128), 8: (4, 16, 32, 128, 512), 32: (4, 8, 16, 32, 128), 64: (32,)}
    shown = [(b, k) for b, ks in lengths.items() for k in ks]

    def ours(row: dict) -> str:
        share = row["share_of_read_bandwidth"]
        return three_digits(row["median_us"]) + (f" ({share:.0%})".replace("%", " %") if share >= 0.6 else "")

    lines = [[name, *(ours(shapes[b, k * 1024][fmt]) for b, k in shown)] for fmt, name in FORMATS.items()]
    for peer, name in PEER_NAMES.items():
        times = [shapes[b, k * 1024]["bf16"]["peers"].get(peer) for b, k in shown]
        if any(times):
            lines.append([name, *(three_digits(us) if us else "" for us in times)])
    return markdown(("us (share of 4.54 TB/s)", *(f"b{b} {k}k" for b, k in shown)), lines)


def bytes_table(rows: list[dict]) -> str:
    """Nanoseconds for 1024 bytes of the cache."""
    shapes = by_shape(rows)
    lines = []
    for fmt in ("mxfp4", "nvfp4", "nvfp4+fp8_e4m3", "fp8_e4m3", "bf16"):
        for b in (8, 32, 64):
            found = [shapes.get((b, k * 1024), {}).get(fmt) for k in (8, 16, 32, 128, 512)]
            shares = [row and row["share_of_read_bandwidth"] * READ_TB_PER_S for row in found]
            lines.append([f"{FORMATS[fmt]}, b{b}", *(f"{1.024 / share:.3f}" if share else "" for share in shares)])
    return markdown(("ns per KB of K and V", "8k", "16k", "32k", "128k", "512k"), lines)


def by_step(rows: list[dict]) -> dict[tuple[int, int], dict[str, dict]]:
    """{(query heads of a KV head, tokens): {format: row}} of the verify steps."""
    steps: dict[tuple[int, int], dict[str, dict]] = {}
    for row in verify_rows(rows):
        steps.setdefault((row["hq"] // row["hkv"], row["q"]), {})[cache(row)] = row
    return dict(sorted(steps.items()))


def verify_table(rows: list[dict]) -> str:
    """Ours beside the peers by query heads of a KV head and tokens, and the fastest peer's time relative to mxfp4's."""
    lines = [
        [f"{heads} x {tokens}", *compared(step), f"{step['mxfp4']['speedup_over_fastest']:.1f}x"]
        for (heads, tokens), step in by_step(rows).items()
        if heads > 4 and tokens > 1
    ]
    return markdown(("heads x tokens", *COMPARED.values(), *PEERS, "fastest / mxfp4"), lines)


def rows_table(rows: list[dict]) -> str:
    """Times by query rows of a KV head; where several steps have as many, that of the fewest heads."""
    steps: dict[int, dict[str, dict]] = {}
    for (heads, tokens), step in by_step(rows).items():
        steps.setdefault(heads * tokens, step)
    lines = [[shown, *(f"{step[name]['median_us']:.0f}" for step in steps.values())] for name, shown in FORMATS.items()]
    return markdown(("us by rows of a KV head, 32 sequences of 16k", *map(str, steps)), lines)


def tokens_table(rows: list[dict]) -> str:
    """Times of 2, 4 and 8 tokens relative to one."""
    steps = by_step(rows)

    def ratios(name: str, heads: int) -> str:
        times = [steps[heads, tokens][name]["median_us"] for tokens in (1, 2, 4, 8)]
        return ", ".join(f"{time / times[0]:.2f}" for time in times[1:])

    lines = [[shown, *(ratios(name, heads) for heads in (4, 8, 16))] for name, shown in FORMATS.items()]
    return markdown(("q_len 2, 4, 8 against 1", "4 query heads a KV head", "8", "16"), lines)


def peers_table(rows: list[dict]) -> str:
    """Every peer of the verify steps, and below why one has no time."""
    steps = {shape: step["bf16"] for shape, step in by_step(rows).items()}
    lines = []
    for (heads, tokens), row in steps.items():
        times = (row["median_us"], *(row["peers"].get(name) for name in PEER_NAMES))
        lines.append([f"{heads} x {tokens}", *map(three_digits, times)])
    failed = {
        f"{PEER_NAMES[name]}: {why}": None
        for row in steps.values()
        for name, why in row.get("failed_peers", {}).items()
    }
    return "\n\n".join([markdown(("us, heads x tokens", "ours bf16", *PEER_NAMES.values()), lines), *failed])


def beside_peers(rows: list[dict], heading: str, step: Callable[[dict], str]) -> str:
    """Ours beside the peers, by heads and by what `step` says of a row."""
    shapes: dict[tuple[str, str], dict[str, dict]] = {}
    for row in rows:
        shapes.setdefault((f"{row['hq']}/{row['hkv']} of {row['d']}", step(row)), {})[cache(row)] = row
    lines = [[*shape, *compared(found), three_digits(found["bf16"]["median_us"])] for shape, found in shapes.items()]
    return markdown(("heads", heading, *COMPARED.values(), *PEERS, "ours bf16"), lines)


def heads_table(rows: list[dict]) -> str:
    """Other KV heads, sequences of 16k."""
    others = [row for row in rows if heads_of(row)[1:] != (8, 128) and not window_of(row)]
    return beside_peers(others, "sequences x tokens", lambda row: f"{row['b']} x {row['q']}")


def windows_table(rows: list[dict]) -> str:
    """Windows, sequences of 16k."""
    cut = [row for row in rows if window_of(row) and not has_means(row)]
    return beside_peers(cut, "window x sequences", lambda row: f"{window_of(row)} x {row['b']}")


def means_table(rows: list[dict]) -> str:
    """Caches without and with means of K and V."""

    def name_of(row: dict) -> str:
        window = f", window of {window_of(row)}" if window_of(row) else ""
        return f"b{row['b']} {row['kv'] // 1024}k{window}"

    times: dict[tuple, float] = {}
    for row in rows:
        if row["q"] == 1 and row["page"] == 64:
            times.setdefault((heads_of(row), name_of(row), cache(row), has_means(row)), row["median_us"])
    shown = list(dict.fromkeys((heads, name) for heads, name, _, means in times if means))
    lines = [
        [
            label,
            *(", ".join(three_digits(times[*shape, fmt, means]) for means in (False, True)) for shape in shown),
        ]
        for fmt, label in FORMATS.items()
    ]
    return markdown(("us without, with means", *(name for _, name in shown)), lines)


def small_pages_table(rows: list[dict]) -> str:
    """Pages of 64 and of 16 tokens."""
    times = {(row["page"], row["b"], row["kv"], cache(row)): row["median_us"] for row in rows if is_decode(row)}
    shown = ((1, 4096), (8, 16384), (32, 16384))
    lines = [
        [name, *(f"{three_digits(times[64, b, kv, fmt])}, {three_digits(times[16, b, kv, fmt])}" for b, kv in shown)]
        for fmt, name in FORMATS.items()
    ]
    return markdown(("us, pages of 64, 16", *(f"b{b} {kv // 1024}k" for b, kv in shown)), lines)


TABLES: dict[str, Callable[[list[dict]], str]] = {
    "decode": decode_table,
    "every_decode": every_decode_table,
    "bytes": bytes_table,
    "verify": verify_table,
    "rows": rows_table,
    "tokens": tokens_table,
    "peers": peers_table,
    "heads": heads_table,
    "windows": windows_table,
    "means": means_table,
    "small_pages": small_pages_table,
}


def updated(page: str, rows: list[dict]) -> str:
    """The text of a page with the tables that it marks."""
    return re.sub(
        r"(<!-- (\w+): bench/h200/pages\.py -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]](rows)}\n{found[3]}",
        page,
        flags=re.DOTALL,
    )


def main() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    for path in PAGES:
        path.write_text(updated(path.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
