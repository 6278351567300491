"""Finds the command line: --mpfa-cli PATH, or the release build."""

from pathlib import Path

import pytest

RELEASE = Path(__file__).resolve().parents[2] / "build" / "release" / "tools" / "mpfa"


def pytest_addoption(parser):
    parser.addoption("--mpfa-cli", default=str(RELEASE), help="the mpfa command line to test")


@pytest.fixture(scope="session")
def cli(request):
    path = Path(request.config.getoption("--mpfa-cli"))
    if not path.is_file():
        pytest.skip(f"{path} is not built; build it or pass --mpfa-cli PATH")
    return path
