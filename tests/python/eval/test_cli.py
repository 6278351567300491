"""The command from end to end on a tiny model, and what it says about bad input."""

import json
import math
import shutil

import pytest

from mpfa.eval.cli import main

SHORT = ["--context", "64", "--decode", "4", "--chunk", "32", "--threads", "1"]


@pytest.fixture(scope="module")
def outcome(tiny_model, tiny_text, tmp_path_factory):
    """(exit status, JSON report, HTML page) of a run with static means and stress."""
    folder = tmp_path_factory.mktemp("report")
    recipes = "bf16,mxfp4,mxfp4;centre=none,mpfa_static"
    files = ["--json", str(folder / "r.json"), "--html", str(folder / "r.html")]
    given = ["--model", str(tiny_model), "--text", str(tiny_text), "--recipes", recipes, "--stress", "kbias"]
    status = main([*given, *SHORT, *files])
    return status, json.loads((folder / "r.json").read_text()), (folder / "r.html").read_text()


def test_rows_carry_every_figure(outcome):
    _, report, _ = outcome
    assert [row["recipe"] for row in report["rows"]] == ["bf16", "mxfp4", "mxfp4,centre=none", "mpfa_static"]
    for row in report["rows"]:
        assert len(row["layer_errors"]) == 2
        assert set(row["counters"]) == {"saturated", "flushed", "nonfinite"}
        assert all(math.isfinite(row[k]) for k in ("ppl", "ppl_prefill", "ppl_decode", "kl_mean", "kl_p99"))
        assert row["prefill_tokens_per_second"] > 0 and row["decode_tokens_per_second"] > 0


def test_16_bits_agree_with_the_reference(outcome):
    _, report, _ = outcome
    bf16, mxfp4 = report["rows"][:2]
    assert bf16["kl_mean"] < 1e-3
    assert bf16["kv_bytes_per_token"] == 2 * 2 * 2 * 2 * 32
    assert mxfp4["kl_mean"] > bf16["kl_mean"]
    assert mxfp4["compression_vs_bf16"] == pytest.approx(16 / 4.25)


def test_exit_status_follows_the_checks(outcome):
    status, report, _ = outcome
    assert status == (0 if all(check["passed"] for check in report["checks"]) else 1)
    assert report["checks"][0]["passed"]


def test_page_is_self_contained(outcome):
    _, _, page = outcome
    assert "src=" not in page and 'href="http' not in page and "@import" not in page
    assert page.count("<svg") == 5


def complaint(capsys, *arguments: str) -> str:
    """The one line of a refused run."""
    assert main([*arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("mpfa-eval: ")
    return lines[-1]


def test_unknown_model(capsys, tiny_text):
    assert "smollm2-135m" in complaint(capsys, "--model", "no-such", "--text", str(tiny_text), *SHORT)


def test_unknown_recipe(capsys):
    assert "no_such" in complaint(capsys, "--recipes", "bf16,no_such", *SHORT)


def test_missing_text(capsys):
    assert "No such file" in complaint(capsys, "--text", "absent.txt", *SHORT)


def test_text_too_short(capsys, tiny_model, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("w1 w2 w3")
    message = complaint(capsys, "--model", str(tiny_model), "--text", str(path), "--recipes", "bf16", *SHORT)
    assert "3 tokens but this run needs 69" in message


def test_context_too_short(capsys):
    assert "--context 5" in complaint(capsys, "--context", "5")


def test_longer_than_the_model_allows(capsys, tiny_model, tiny_text):
    message = complaint(
        capsys, "--model", str(tiny_model), "--text", str(tiny_text), "--recipes", "bf16", "--context", "600"
    )
    assert "the model allows 512" in message


def test_missing_and_bad_gguf(capsys, tiny_text, tmp_path):
    path = tmp_path / "bad.gguf"
    assert "no such file" in complaint(capsys, "--model", str(path), "--text", str(tiny_text), *SHORT)
    path.write_bytes(b"GGUF" + bytes(64))
    message = complaint(
        capsys, "--model", str(path), "--text", str(tiny_text), "--cache-dir", str(tmp_path / "c"), *SHORT
    )
    assert "bad.gguf" in message


def test_truncated_safetensors(capsys, tiny_model, tiny_text, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "cannot load" in complaint(capsys, "--model", str(folder), "--text", str(tiny_text), *SHORT)


def test_bad_config(capsys, tiny_model, tiny_text, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "config.json").write_text("{")
    assert "cannot load" in complaint(capsys, "--model", str(folder), "--text", str(tiny_text), *SHORT)


def test_report_that_cannot_be_written(capsys, tiny_model, tiny_text, tmp_path):
    (tmp_path / "file").write_text("")
    message = complaint(
        capsys, "--model", str(tiny_model), "--text", str(tiny_text), "--recipes", "bf16", *SHORT,
        "--json", str(tmp_path / "file" / "r.json"),
    )  # fmt: skip
    assert "cannot write" in message
