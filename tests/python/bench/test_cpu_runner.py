"""The CPU benchmark from end to end on a tiny grid: its files carry every field that readers of them need."""

import json
import math
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark compares with torch")
pytest.importorskip("matplotlib", reason="the benchmark draws plots")
pytest.importorskip("tqdm", reason="the benchmark shows its progress")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench" / "cpu"))

import cases
import run
from timing import Contestant, Effort, measure

TINY = {"hq": 4, "hkv": 2, "d": 64}
FIELDS = (
    "b q_len kv hq hkv d recipe k_format v_format threads median_ms min_ms max_ms gb_per_s bytes_read "
    "share_of_memory_bandwidth peers best_torch"
).split()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    grid = [
        cases.Case("decode", 2, 1, 96, **TINY),
        cases.Case("prefill", 1, 32, 32, **TINY),
        cases.Case("append", 1, 0, 64, **TINY),
    ]
    folder = tmp_path_factory.mktemp("cpu")
    effort = Effort(rounds=1, burst_s=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "copies_for", lambda _: 2)
        patch.setattr(run.peers, "copies_for", lambda _: 2)
        written = run.run(grid, folder, recipes=("bf16", "mpfa"), effort=effort, bandwidth_bytes=2**20)
    assert all(path.with_suffix(".svg").read_text().startswith("<svg") for path in written)
    return {path.stem: json.loads(path.read_text()) for path in written}


def test_rows_carry_every_field(results):
    assert list(results) == ["decode", "prefill", "append"]
    for kind, result in results.items():
        assert result["machine"]["read_bandwidth_gb_per_s"] > 0 and result["machine"]["cores"] >= 1
        assert {"cpu", "flags"} <= set(result["machine"]) and "torch" in result["versions"] and result["date"]
        assert [(row["recipe"], row["k_format"], row["v_format"]) for row in result["rows"]] == [
            ("bf16", "bf16", "bf16"),
            ("mpfa", "nvfp4", "fp8_e4m3"),
        ]
        for row in result["rows"]:
            assert set(FIELDS) <= set(row), kind
            assert set(row["peers"]) == {"torch_fp32", "torch_fp16", "torch_bf16"} and row["best_torch"] in row["peers"]
            assert row["peer_ranges"].keys() == row["peers"].keys()
            peers = [{"median_ms": median, **row["peer_ranges"][name]} for name, median in row["peers"].items()]
            for times in (row, *peers):
                assert 0 < times["min_ms"] <= times["median_ms"] <= times["max_ms"]
            assert math.isclose(row["gb_per_s"], row["bytes_read"] / row["median_ms"] * 1e-6)


def test_bytes_are_those_of_the_state(results):
    bf16 = results["decode"]["rows"][0]
    assert bf16["bytes_read"] == 2 * 96 * 2 * 64 * 2 * 2  # b, kv, heads, d, K and V, bytes
    assert results["append"]["rows"][0]["bytes_read"] == 64 * 2 * 64 * 2 * 4


def test_contestants_take_turns():
    seen = []
    pair = [Contestant(name, [lambda name=name: seen.append(name)], 1.0) for name in "ab"]
    assert set(measure(pair, Effort(rounds=2, burst_s=0.0))) == {"a", "b"}
    assert seen == list("aabbaabb")


def test_a_long_call_warms_up_once_and_one_far_behind_has_one_round(monkeypatch):
    now, seen = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def call(name, seconds):
        seen.append(name)
        now[0] += seconds

    times = {"a": 2.0, "b": 19.0, "c": 21.0}
    measured = measure(
        [Contestant(name, [lambda n=name, s=s: call(n, s)], 1.0) for name, s in times.items()],
        Effort(rounds=3, burst_s=0.0),
    )
    assert seen == list("aabbccabab")
    assert {name: m["median_ms"] for name, m in measured.items()} == {"a": 2e3, "b": 19e3, "c": 21e3}


def test_a_folder_without_ggml_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run.main(["--ggml", str(tmp_path)])
    assert "there is no libggml-base.so" in capsys.readouterr().err
