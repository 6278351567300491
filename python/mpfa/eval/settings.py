"""What to evaluate, checked before anything slow starts."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

import mpfa
from mpfa.eval.errors import EvalError

CALIBRATION_TOKENS = 512
MIN_CONTEXT = 64
BASELINE = "bf16"
STRESS_NAMES = ("kbias",)
OPERAND_FIELDS = frozenset({"q", "k", "v", "kv"})  # what a recipe without a name begins with


def default_cache_dir() -> Path:
    """Folder of converted models, following the XDG base directory convention."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mpfa"


@dataclass(frozen=True)
class Span:
    """Lengths in tokens: `context` is prefilled in pieces of `chunk`, then `decode` single steps follow."""

    context: int
    decode: int
    chunk: int

    @property
    def positions(self) -> int:
        """Number of predicted tokens; one more token than this is needed."""
        return self.context + self.decode

    def steps(self) -> list[tuple[int, int]]:
        """Half-open token ranges of the successive forward passes."""
        edges = [*range(0, self.context, self.chunk), *range(self.context, self.positions + 1)]
        return list(itertools.pairwise(edges))


@dataclass(frozen=True)
class Settings:
    """Settings that can work; others raise EvalError or MpfaError. `stress_recipes` run without and with the stress."""

    model: str
    recipes: tuple[str, ...]
    span: Span
    stress: str | None = None
    stress_recipes: tuple[str, ...] = ()
    text: str | None = None
    threads: int | None = None
    cache_dir: Path = field(default_factory=default_cache_dir)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def all_recipes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.recipes + self.stress_recipes))


def parse_recipes(given: str) -> tuple[str, ...]:
    """Split "bf16,mxfp4;centre=none" into recipes; ';' stands for the ',' inside a recipe."""
    parts = [part.strip() for part in given.split(",") if part.strip()]
    if not parts:
        raise EvalError("--recipes is empty; give names separated by commas, for example bf16,fp8,mxfp4")
    for part in parts:
        field_name, equals, _ = part.split(";")[0].partition("=")
        if equals and field_name not in OPERAND_FIELDS:
            raise EvalError(
                f"--recipes: '{part}' is a field, not a recipe; inside a recipe write ';' instead of ',', "
                f"for example 'mxfp4;{part}'"
            )
    return tuple(dict.fromkeys(part.replace(";", ",") for part in parts))


def check_settings(settings: Settings) -> None:
    """Raise EvalError or MpfaError for what cannot work whatever the model is."""
    span = settings.span
    if span.context < MIN_CONTEXT:
        raise EvalError(f"--context {span.context} is too short; give at least {MIN_CONTEXT} tokens")
    if span.decode < 1:
        raise EvalError(f"--decode {span.decode}: give at least 1 token to decode")
    if not 1 <= span.chunk <= span.context:
        raise EvalError(f"--chunk {span.chunk}: give 1 to {span.context} (the context) tokens per prefill step")
    if settings.threads is not None and settings.threads < 1:
        raise EvalError(f"--threads {settings.threads}: give at least 1")
    if settings.stress is not None and settings.stress not in STRESS_NAMES:
        raise EvalError(f"--stress {settings.stress}: unknown; known is {', '.join(STRESS_NAMES)}")
    for recipe in settings.all_recipes:
        mpfa.recipe_text(recipe)


def head_dim_of(config) -> int:
    """Head dimension of a model configuration, explicit or derived."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
