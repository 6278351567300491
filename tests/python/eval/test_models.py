"""Finding, converting and verifying packaged models, without any of them installed."""

import hashlib
import json

import pytest

from mpfa.eval import models
from mpfa.eval.errors import EvalError
from mpfa.eval.gguf_packages import PackagedModel, find_pieces, gguf_of


def test_missing_package_names_the_command():
    absent = PackagedModel("absent", "some-package", ("no_such_module_here",), "*.gguf")
    with pytest.raises(EvalError, match="pip install some-package"):
        find_pieces(absent)


def test_pieces_are_joined_in_order(tmp_path, monkeypatch):
    for i in (1, 2):
        (tmp_path / f"piece{i}").mkdir()
        (tmp_path / f"piece{i}" / "__init__.py").write_text("")
        (tmp_path / f"piece{i}" / f"m.gguf.part{i}").write_bytes(bytes([i]))
    monkeypatch.syspath_prepend(str(tmp_path))
    model = PackagedModel("joined", "x", ("piece1", "piece2"), "*.gguf.part*")
    assert gguf_of(model, tmp_path).read_bytes() == b"\x01\x02"


@pytest.fixture
def converted(tmp_path):
    """A folder as the converter leaves it, with a few bytes for weights."""
    folder = tmp_path / "smollm2-135m"
    folder.mkdir()
    (folder / models.WEIGHTS).write_bytes(b"weights")
    sums = {models.WEIGHTS: hashlib.sha256(b"weights").hexdigest()}
    (folder / models.CHECKSUMS).write_text(json.dumps(sums))
    return folder


def test_intact_folder_is_used_as_it_is(converted, tmp_path):
    assert models._converted(converted.name, tmp_path, pytest.fail) == converted


@pytest.mark.parametrize("damage", ["weights", "checksums", "missing"])
def test_damaged_folder_is_announced_and_converted_again(converted, tmp_path, monkeypatch, capsys, damage):
    if damage == "weights":
        (converted / models.WEIGHTS).write_bytes(b"weighty")
    elif damage == "checksums":
        (converted / models.CHECKSUMS).write_text("{")
    else:
        (converted / models.WEIGHTS).unlink()
    monkeypatch.setattr(models, "_convert", lambda gguf, folder: (folder.mkdir(), (folder / "new").write_text("")))
    folder = models._converted(converted.name, tmp_path, lambda scratch: scratch / "source.gguf")
    assert (folder / "new").exists()
    assert "damaged" in capsys.readouterr().err
