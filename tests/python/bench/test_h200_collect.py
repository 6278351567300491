"""What the H200 benchmark makes of a run: rows with their peers, tables, plots, pages that agree with the results."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the benchmark draws plots")
ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "h200"))

import collect
import pages

FORMATS = ("mxfp4", "nvfp4", "bf16")


def ours(fmt, us, *, q=1, hq=32, b=32, kv=16384, **more):
    row = {"b": b, "kv": kv, "q": q, "hq": hq, "hkv": 8, "d": 128, "page": 64, "k_format": fmt, "v_format": fmt}
    return {**row, "median_us": us, "tb_per_s": 1.0, "share_of_read_bandwidth": 0.5, **more}


def split(row):
    """A row whose K and V have formats of their own."""
    k, _, v = row["k_format"].partition("+")
    return {**row, "k_format": k, "v_format": v or k}


def theirs(q, hq, **peers):
    timed = {name: t if isinstance(t, dict) else {"median_us": t, "mask": "causal"} for name, t in peers.items()}
    return {"b": 32, "kv": 16384, "q": q, "hq": hq, "hkv": 8, "d": 128, "peers": timed}


PEERS = {
    "rows": [
        theirs(1, 32, torch_flash_bf16=500, flashinfer_fp8=400),
        theirs(4, 64, torch_flash_bf16=900, flashinfer_bf16=600, flashinfer_fp8={"error": "ValueError: no"}),
        theirs(2, 64, torch_flash_bf16=700, flashinfer_bf16=550.04, flashinfer_fp8=450),
    ]
}
STEPS = ((1, 32), (2, 64), (4, 64))


@pytest.fixture(scope="module")
def rows():
    run = [ours(fmt, 100.0 * (i + 1), q=q, hq=hq) for i, fmt in enumerate(FORMATS) for q, hq in STEPS]
    others = [ours("mxfp4", 100, q=4, hq=64, mask="u8"), ours("mxfp4", 90, q=8, hq=64), ours("mxfp4", 110, page=16)]
    return collect.join([*run, *others], PEERS)


def found(rows, fmt, q, hq):
    return next(row for row in rows if (row["k_format"], row["q"], row["hq"]) == (fmt, q, hq))


def test_a_verify_step_has_the_peers_of_its_own_shape(rows):
    row = found(rows, "nvfp4", 2, 64)
    assert row["peers"] == {"torch_flash_bf16": 700, "flashinfer_bf16": 550.0, "flashinfer_fp8": 450}
    assert (row["speedup_over_best_bf16"], row["fastest_peer"]) == (2.75, "flashinfer_fp8")
    assert row["speedup_over_fastest"] == 2.25
    assert found(rows, "mxfp4", 1, 32)["peers"] == {"torch_flash_bf16": 500, "flashinfer_fp8": 400}


def test_masks_other_pages_and_shapes_that_no_peer_ran_have_none(rows):
    for row in rows[-3:]:
        assert row["peers"] == {}
        assert "fastest_peer" not in row


def test_windows_are_cases_of_their_own(rows):
    run = [ours("mxfp4", 10, window=128), ours("bf16", 12, window=128), ours("mxfp4", 70)]
    peers = {"rows": [{**theirs(1, 32, flashinfer_bf16=20), "window": 128}, theirs(1, 32, torch_flash_bf16=500)]}
    joined = collect.join(run, peers)
    assert [row["peers"] for row in joined] == [{"flashinfer_bf16": 20}] * 2 + [{"torch_flash_bf16": 500}]
    assert [collect.is_decode(row) for row in joined] == [False, False, True]
    assert "window of 128" in collect.table(joined)
    run = [ours(fmt, 10 + i, window=128) for i, fmt in enumerate(pages.FORMATS)]
    lines = pages.windows_table(collect.join([split(row) for row in run], peers) + rows).splitlines()
    assert lines[2:] == ["| 32/8 of 128 | 128 x 32 | 10.0 | 11.0 | 12.0 | 14.0 | 15.0 | - | 20.0 | - | - | 17.0 |"]


def test_rows_with_means_have_no_peers_and_a_table_of_their_own(rows):
    run = [split(ours(fmt, 10 + i, means=means)) for means in (False, True) for i, fmt in enumerate(pages.FORMATS)]
    joined = collect.join(run, {"rows": [theirs(1, 32, torch_flash_bf16=500)]})
    with_means = [row for row in joined if collect.has_means(row)]
    assert len(with_means) == len(pages.FORMATS)
    assert not any(row["peers"] or collect.is_decode(row) for row in with_means)
    with_means[0]["median_us"] = 11.5
    lines = pages.means_table(joined).splitlines()
    assert lines[0] == "| us without, with means | b32 16k |"
    assert lines[2:4] == ["| mxfp4 | 10.0, 11.5 |", "| nvfp4 | 11.0, 11.0 |"]


def test_a_failed_peer_keeps_its_reason_and_the_others(rows):
    row = found(rows, "mxfp4", 4, 64)
    assert row["failed_peers"] == {"flashinfer_fp8": "ValueError: no"}
    assert (row["fastest_peer"], row["speedup_over_fastest"]) == ("flashinfer_bf16", 6.0)
    text = collect.table(rows).splitlines()
    assert text[-1] == "flashinfer_fp8: ValueError: no"
    names = text[0].split("  ")
    line = next(line for line in text if "q 4 of 8 heads" in line and "mxfp4" in line)
    assert [name.strip() for name in names if name][4:7] == ["torch_flash_bf16", "flashinfer_fp8", "flashinfer_bf16"]
    assert line.split()[-5:] == ["900.0", "-", "600.0", "6.00x", "6.00x"]


def test_each_plot_has_its_own_rows(rows):
    shorter = [{**theirs(1, 32, torch_flash_bf16=us), "kv": kv} for kv, us in ((4096, 150), (8192, 250))]
    run = [ours("mxfp4", 50, kv=4096), ours("mxfp4", 70, kv=8192)]
    panels = collect.decode_panels(collect.join(run, {"rows": shorter}) + rows)
    assert [(row["kv"], row["q"]) for row in panels["32 sequences"] if row["k_format"] == "mxfp4"] == [
        (4096, 1),
        (8192, 1),
        (16384, 1),
    ]
    panels = collect.verify_panels(rows)
    assert [row["q"] for row in panels["8 query heads a KV head"] if row["k_format"] == "bf16"] == [2, 4]
    assert collect.time_plot(panels, "q", "tokens").startswith("<svg")


def test_pages_agree_with_the_results():
    rows = json.loads(pages.RESULTS.read_text(encoding="utf-8"))["rows"]
    for path in pages.PAGES:
        page = path.read_text(encoding="utf-8")
        assert "bench/h200/pages.py -->" in page
        assert pages.updated(page, rows) == page


def test_peers_run_steps_that_the_bench_runs():
    pytest.importorskip("torch", reason="the peers are PyTorch's")
    spec = importlib.util.spec_from_file_location("h200_peers", ROOT / "bench" / "h200" / "peers.py")
    peers = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = peers  # its dataclass looks itself up
    spec.loader.exec_module(peers)
    run = collect.lines(ROOT / "bench" / "results" / "h200" / "decode.jsonl")
    shapes = {collect.shape_key(row) for row in run if "mask" not in row}
    cases = [collect.shape_key(vars(case)) for case in peers.GRIDS["all"]()]
    assert len(cases) == len(set(cases))
    assert set(cases) <= shapes
    error = RuntimeError("Ninja build failed\n/a/b/x.h:1: fatal error: no y.h\nninja: build stopped")
    assert peers.reason(error) == "RuntimeError: x.h:1: fatal error: no y.h"
