"""The Python examples run, and their 4-bit caches are close to 16-bit ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def output(name: str) -> str:
    run = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_decode_example():
    text = output("decode.py")
    assert re.search(r"^bf16 +1024 bytes per token$", text, re.MULTILINE)
    assert float(text.split()[-1]) < 0.25


def test_gpu_example():
    pytest.importorskip("torch")
    text = output("decode_gpu.py")
    if text.startswith("SKIPPED: "):
        pytest.skip(text.removeprefix("SKIPPED: ").strip())
    assert float(text.split()[-1]) < 0.2
