"""`mpfa matrix`: the page in docs/ is its output, and its cells agree with one another."""

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "support.md"


def output(cli, *args):
    return subprocess.run([cli, "matrix", *args], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_page_is_the_output(cli):
    assert PAGE.read_text(encoding="utf-8") == output(cli), f"write it again: mpfa matrix > docs/{PAGE.name}"


def test_every_cell_has_a_kernel_or_a_reason_on_every_device(cli):
    cells = json.loads(output(cli, "--json"))
    keys = {(c["format"], c["phase"], c["group"], c["feature"]) for c in cells}
    assert len(keys) == len(cells) > 5000
    for cell in cells:
        assert set(cell["devices"]) == {"cpu", "sm90", "sm100", "sm120"}
        for answer in cell["devices"].values():
            assert bool(answer["kernel"]) != bool(answer["reasons"])
    taken = sum(bool(c["devices"]["cpu"]["kernel"]) for c in cells)
    assert taken > 0.9 * len(cells)


def test_the_page_names_device_tests_that_exist():
    text = PAGE.read_text(encoding="utf-8")
    declared = (ROOT / "tests" / "cuda" / "CMakeLists.txt").read_text(encoding="utf-8")
    named = set(re.findall(r"`cuda\.(\w+)`", text))
    assert named == {"matrix"}
    assert all(f"mpfa_device_test({name} " in declared for name in named)
