"""The command line from outside: reports, numbers, files, exit status and messages."""

import json
import subprocess

import numpy as np
import pytest


def write(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        dtype = {"float32": "F32", "float16": "F16", "float64": "F64"}[array.dtype.name]
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def read(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(raw[8 + size :][slice(*t["data_offsets"])], np.float32).reshape(t["shape"])
        for name, t in header.items()
    }


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 8, 4, 64), np.float32)
    k, v = rng.standard_normal((2, 1, 96, 2, 64), np.float32)
    return {"q": q, "k": k, "v": v}


def softmax_attention(q, k, v):
    group = q.shape[2] // k.shape[2]
    logits = np.einsum("bihd,bjhd->bhij", q.astype(float), np.repeat(k, group, 2).astype(float)) / np.sqrt(q.shape[3])
    hidden = np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    logits[:, :, hidden] = -np.inf
    lse = np.log(np.exp(logits).sum(-1))
    return np.einsum("bhij,bjhd->bihd", np.exp(logits - lse[..., None]), np.repeat(v, group, 2)), lse


@pytest.fixture
def run(cli):
    def call(*args, code=0):
        done = subprocess.run([cli, *map(str, args)], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        if code:
            assert done.stdout == ""
            assert done.stderr.startswith("mpfa: ") and done.stderr.count("\n") == 1
        return done.stderr if code else done.stdout

    return call


def test_reports(run):
    doctor = json.loads(run("doctor", "--json"))
    assert doctor["cpu"]["threads"] >= 1
    for row in doctor["problems"]:
        assert set(row["devices"]) == {"cpu", "sm90", "sm100", "sm120"}
        for device in row["devices"].values():
            assert bool(device["kernel"]) != bool(device["reasons"])
    recipes = {r["name"]: r for r in json.loads(run("recipes", "--json"))}
    assert recipes["mpfa"]["fields"]["k"] == "nvfp4" and recipes["mxfp4"]["bytes_per_token_d128"] == 136
    formats = {f["name"]: f for f in json.loads(run("formats", "--json"))}
    assert formats["nvfp4"]["bytes_per_token_d128"] == 72
    assert "mpfa" in run("recipes") and "nvfp4@keys" in run("formats") and "cpu:" in run("doctor")
    assert "attend" in run("--help") and run("--version").startswith("mpfa ")


def test_attend_matches_numpy_and_writes_what_it_measured(run, problem, tmp_path):
    file, out = write(tmp_path / "in.safetensors", problem), tmp_path / "out.safetensors"
    recipe = "q=f32,kv=f32,p=f32"
    report = json.loads(run("attend", file, "--recipe", recipe, "--causal", "--json", "--out", out))
    assert report["kernel"] and report["out"]["relative_l2"] < 1e-6 and report["lse_max_abs"] < 1e-5
    assert len(report["out_per_head"]) == 4
    expected, lse = softmax_attention(**problem)
    written = read(out)
    np.testing.assert_allclose(written["out"], expected, atol=1e-5)
    np.testing.assert_allclose(written["lse"], lse, atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "low", "high"),
    [("bf16", 1e-4, 0.02), ("mxfp4", 0.02, 0.4), ("mpfa", 0.01, 0.3), ("mxattention", 0.02, 0.4), ("fp8", 0.005, 0.1)],
)
def test_recipe_errors_are_of_the_expected_size(run, problem, tmp_path, recipe, low, high):
    report = json.loads(run("attend", write(tmp_path / "in", problem), "--recipe", recipe, "--causal", "--json"))
    assert low < report["out"]["relative_l2"] < high
    assert report["counters"]["nonfinite_blocks"] == 0


def test_options_change_the_call_and_not_the_agreement(run, problem, tmp_path):
    three = {name: x[0].astype(np.float16) for name, x in problem.items()} | {"sinks": np.ones(4, np.float32)}
    file = write(tmp_path / "in", three)
    options = ["--recipe", "q=f32,kv=fp16,p=f32", "--window", "-1,3", "--softcap", 20, "--scale", 0.5, "--page-size", 16]
    report = json.loads(run("attend", file, *options, "--threads", 1, "--json"))
    assert report["out"]["relative_l2"] < 1e-5 and report["lse_max_abs"] < 1e-4
    assert "relative L2" in run("attend", file, "--recipe", "nvfp4")


def test_means_of_the_file_serve_the_recipes_that_ask_for_them(run, problem, tmp_path):
    means = {"k_mean": problem["k"].mean((0, 1)), "q_mean": problem["q"].mean((0, 1))}
    file = write(tmp_path / "in", problem | means)
    for recipe in ("mpfa_static", "mxfp4"):
        report = json.loads(run("attend", file, "--recipe", recipe, "--json"))
        assert 0.01 < report["out"]["relative_l2"] < 0.3


def test_output_that_cannot_be_written_is_status_1(cli):
    with open("/dev/full", "w") as full:
        done = subprocess.run([cli, "formats"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "cannot be written" in done.stderr


def test_bad_input_is_one_sentence_and_status_2(run, problem, tmp_path):
    file = write(tmp_path / "in", problem)
    attend = ("attend", file, "--recipe")
    assert "did you mean 'mpfa'" in run(*attend, "mpfaa", code=2)
    assert "cannot be opened" in run("attend", tmp_path / "none", "--recipe", "mpfa", code=2)
    assert "not a regular file" in run("attend", tmp_path, "--recipe", "mpfa", code=2)
    assert "k_mean" in run(*attend, "mxfp4,centre=static", code=2)
    for bad in (["--window", "1"], ["--page-size", "0"], ["--scale", "x"], ["--scale", "nan"], ["--softcap", "-1"]):
        run(*attend, "bf16", *bad, code=2)
    for bad in ([], ["nothing"], ["attend"], ["doctor", "--no-such-flag"]):
        assert "--help" in run(*bad, code=2)
    assert "cannot be written" in run(*attend, "bf16", "--out", tmp_path / "no" / "folder", code=2)
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-5])
    assert "truncated" in run("attend", tmp_path / "cut", "--recipe", "bf16", code=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((1, 8, 3, 64), np.float32)}, "3 heads"),
        ({"q": np.zeros((1, 8, 4, 32), np.float32)}, "head_dim 32"),
        ({"q": np.zeros((2, 8, 4, 64), np.float32)}, "batch 2"),
        ({"q": np.zeros((1, 0, 4, 64), np.float32)}, "[1, 0, 4, 64]"),
        ({"q": np.zeros((8, 64), np.float32)}, "[8, 64]"),
        ({"v": np.zeros((1, 95, 2, 64), np.float32)}, "95"),
        ({"k": np.zeros((1, 96, 2, 64))}, "F64"),
        ({"sinks": np.zeros(3, np.float32)}, "sinks"),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(run, problem, tmp_path, change, message):
    file = write(tmp_path / "in", problem | change)
    assert message in run("attend", file, "--recipe", "bf16", code=2)
