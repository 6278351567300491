"""Fixtures of the evaluation tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the evaluation needs torch")
pytest.importorskip("transformers", reason="the evaluation needs transformers")
sys.path.insert(0, str(Path(__file__).parent))

from tiny import random_words, save_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """Folder of a tiny model."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory) -> Path:
    """A text of 900 tokens of the tiny model."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(random_words(900), encoding="utf-8")
    return path
