"""scripts/setup.sh says in one sentence what stops it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the script reads, so that it builds nothing in the tree."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "python").mkdir()
    for file in ROOT.glob("python/requirements*.txt"):
        shutil.copy(file, tmp_path / "python")
    return tmp_path


def run(checkout, **settings):
    environment = {**os.environ, "SKIP_APT": "1", **settings}
    return subprocess.run([checkout / "scripts" / "setup.sh"], env=environment, capture_output=True, text=True, check=False)


def fake(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_missing_python(checkout):
    result = run(checkout, PYTHON="no-such-python")
    assert result.returncode == 1
    assert result.stderr == "setup: there is no 'no-such-python'; name a Python 3.11 or newer with PYTHON=...\n"


def test_old_python(checkout):
    old = fake(checkout / "python3.9", 'case "$2" in *exit*) exit 1 ;; *) echo 3.9 ;; esac')
    result = run(checkout, PYTHON=old)
    assert result.returncode == 1
    assert "is Python 3.9; 3.11 or newer is needed" in result.stderr


def test_full_disk(checkout):
    fake(checkout / "df", "printf 'Filesystem 1024-blocks Used Available\\nx 100 90 10240\\n'")
    result = run(checkout, PATH=f"{checkout}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert "has 10 MiB free; the virtual environment needs 4 GiB" in result.stderr


def test_missing_packages_without_root_and_sudo(checkout):
    (checkout / "scripts" / "debian-packages.txt").write_text("no-such-package\n", encoding="utf-8")
    for tool in ("id", "apt-get", "dpkg-query"):
        fake(checkout / tool, "echo 1000" if tool == "id" else "exit 1")
    for tool in ("bash", "dirname", "mkdir", "grep", "awk", "sort", "comm", "tr", "flock"):
        (checkout / tool).symlink_to(shutil.which(tool))
    result = run(checkout, SKIP_APT="0", PATH=str(checkout))
    assert result.returncode == 1
    assert "there is no sudo; as root run: apt-get install no-such-package" in result.stderr
