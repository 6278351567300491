"""The Python example of the README runs and its 4-bit cache is close to the 16-bit one."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "decode.py"


def test_decode_example():
    run = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert re.search(r"^bf16 +1024 bytes per token$", run.stdout, re.MULTILINE)
    assert float(run.stdout.split()[-1]) < 0.25
