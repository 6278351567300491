"""Find, convert once, verify and load the model to evaluate."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from mpfa.eval.errors import EvalError
from mpfa.eval.gguf_packages import PACKAGED_MODELS, gguf_of

CHECKSUMS = "checksums.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class LoadedModel:
    """A causal LM in float32, its tokenizer and the SHA-256 of its weights."""

    name: str
    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    sha256: str


def say(message: str) -> None:
    """Tell the user what takes time; the report itself goes to standard output."""
    print(message, file=sys.stderr, flush=True)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_model(given: str, cache_dir: Path) -> LoadedModel:
    """Load a packaged model by name, a model folder, or a GGUF file."""
    _quiet_transformers()
    path = Path(given)
    if given in PACKAGED_MODELS:
        folder = _converted(given, cache_dir, lambda scratch: gguf_of(PACKAGED_MODELS[given], scratch))
        sha256 = _read_checksums(folder)[WEIGHTS]
    elif path.suffix == ".gguf":
        if not path.is_file():
            raise EvalError(f"--model {given}: there is no such file")
        source = sha256_file(path)
        folder = _converted(f"{path.stem}-{source[:12]}", cache_dir, lambda _scratch: path)
        sha256 = _read_checksums(folder)[WEIGHTS]
    elif path.is_dir():
        folder, sha256 = path, _folder_sha256(path)
    else:
        names = ", ".join(PACKAGED_MODELS)
        raise EvalError(
            f"--model {given}: unknown model; give one of {names}, a folder in Hugging Face format, or a .gguf file"
        )
    model, tokenizer = _load_folder(folder, given)
    return LoadedModel(given if given in PACKAGED_MODELS else path.name, model, tokenizer, sha256)


def _converted(name: str, cache_dir: Path, find_gguf) -> Path:
    """Folder of the converted model, converting when it is absent or does not match its checksums."""
    folder = cache_dir / name
    if folder.is_dir():
        damaged = _damaged_file(folder)
        if damaged is None:
            return folder
        say(f"converted model in {folder} is damaged ({damaged}); converting it again")
        shutil.rmtree(folder)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".converting-") as scratch:
            gguf = find_gguf(Path(scratch))
            say(f"converting {gguf.name} once (about a minute) into {folder}")
            finished = Path(scratch) / "finished"
            _convert(gguf, finished)
            finished.rename(folder)
    except OSError as error:
        raise EvalError(
            f"cannot write the converted model to {cache_dir}: {error.strerror or error}; "
            "choose another folder with --cache-dir"
        ) from None
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    """Unpack a GGUF file to float32 safetensors with tokenizer and checksums."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
    except ImportError as error:
        raise EvalError(f"reading GGUF needs more packages: {_first_line(error)}") from None
    except Exception as error:  # the GGUF reader raises almost every built-in type on a bad file
        raise EvalError(f"{gguf} is not a GGUF file that can be loaded: {_first_line(error)}") from None
    model.save_pretrained(folder, max_shard_size="100GB")
    tokenizer.save_pretrained(folder)
    sums = {file.name: sha256_file(file) for file in sorted(folder.iterdir()) if file.is_file()}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def _read_checksums(folder: Path) -> dict[str, str]:
    return json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))


def _damaged_file(folder: Path) -> str | None:
    """Name of the first file that differs from the recorded checksums, or None."""
    try:
        sums = _read_checksums(folder)
        if WEIGHTS not in sums:
            return CHECKSUMS
    except (OSError, ValueError):
        return CHECKSUMS
    for name, expected in sums.items():
        file = folder / name
        if not file.is_file() or sha256_file(file) != expected:
            return name
    return None


def _folder_sha256(folder: Path) -> str:
    """Digest over the digests of a user's weight files."""
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not files:
        raise EvalError(
            f"--model {folder}: the folder needs config.json and *.safetensors, as written by save_pretrained()"
        )
    if len(files) == 1:
        return sha256_file(files[0])
    return hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest()


def _load_folder(folder: Path, given: str):
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    except Exception as error:  # configs and weight files fail in many ways; each is the user's file
        raise EvalError(
            f"--model {given}: cannot load {folder}: {_first_line(error)}; check that the download is complete"
        ) from None
    return model.eval(), tokenizer


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _quiet_transformers() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="transformers")
