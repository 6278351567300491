"""The whole evaluation: reference run, one run per recipe, stress, capacity, checks -> report."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import torch
from tqdm import tqdm

from mpfa.eval.calibrate import calibrate_means, operands_with_static_means, select_means
from mpfa.eval.checks import check_rows, check_stress
from mpfa.eval.errors import EvalError
from mpfa.eval.machine import available_memory, describe_machine, describe_versions
from mpfa.eval.metrics import ReferenceRecord, attention_modules, perplexity
from mpfa.eval.models import LoadedModel, load_model, say
from mpfa.eval.planner import plan_capacity
from mpfa.eval.run import Speed, run_recipe, run_reference
from mpfa.eval.settings import CALIBRATION_TOKENS, Settings, head_dim_of
from mpfa.eval.stress import StressedCache, stressed_means
from mpfa.eval.text import Text, load_text, tokenize
from mpfa.integrations.transformers import MpfaCache, StaticMeans, register


@dataclass
class Bench:
    """Everything that the runs of one evaluation share."""

    settings: Settings
    loaded: LoadedModel
    ids: torch.Tensor  # [1, positions + 1]
    reference: ReferenceRecord
    operands: dict[str, frozenset[str]]  # by recipe: which operands take calibrated means
    means: list[StaticMeans]  # by layer; empty when no recipe takes any
    progress: tqdm

    def row(self, recipe: str, stressed: bool) -> dict:
        """Run one recipe and describe it."""
        announce(self.progress, f"{recipe} (stressed)" if stressed else recipe)
        model, span = self.loaded.model, self.settings.span
        means = select_means(self.means, self.operands[recipe])
        if stressed:
            cache = StressedCache(model.config, recipe, static_means=stressed_means(means) if means else None)
        else:
            cache = MpfaCache(model.config, recipe, static_means=means)
        comparison, speed = run_recipe(model, self.ids, cache, span, self.reference, self.progress.update)
        baseline = bf16_bytes_per_token(model.config)
        return {
            "recipe": recipe,
            "kv_bytes_per_token": cache.bytes_per_token,
            "compression_vs_bf16": baseline / cache.bytes_per_token,
            "kv_bytes_in_use_per_token": cache.memory_bytes / span.positions,
            **comparison.figures(span.context),
            "counters": cache.counters,
            **speed.figures(span),
        }


def announce(progress: tqdm, what: str) -> None:
    """Name the current run on the bar, or on a line of its own where the output is no terminal."""
    if progress.disable:
        say(f"running {what}")
    else:
        progress.set_description(what)


def bf16_bytes_per_token(config) -> int:
    """K and V of one token over all layers in 16 bits."""
    text = config.get_text_config(decoder=True)
    return 2 * 2 * text.num_hidden_layers * text.num_key_value_heads * head_dim_of(text)


def evaluate(settings: Settings) -> dict:
    """Run everything; the result is what --json writes."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    register()
    text = load_text(settings.text)
    loaded = load_model(settings.model, settings.cache_dir)
    check_model(loaded, settings)
    bench, speed = open_bench(settings, loaded, text)
    with bench.progress:
        rows = [bench.row(recipe, stressed=False) for recipe in settings.recipes]
        stress_rows = [stress_row(bench, recipe, rows) for recipe in settings.stress_recipes]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "model": describe_model(loaded),
        "text": {"name": text.name, "sha256": text.sha256},
        "settings": describe_settings(bench),
        "reference": describe_reference(bench, speed),
        "rows": rows,
        "stress": {"name": settings.stress, "rows": stress_rows},
        "capacity": plan_capacity(settings.recipes),
        "checks": check_rows(rows) + check_stress(stress_rows),
    }


def open_bench(settings: Settings, loaded: LoadedModel, text: Text) -> tuple[Bench, Speed]:
    """Reference run and calibration. The calibration slice of the text follows the evaluated window."""
    config = loaded.model.config.get_text_config(decoder=True)
    operands = {recipe: operands_with_static_means(recipe, config) for recipe in settings.all_recipes}
    slice_length = CALIBRATION_TOKENS if any(operands.values()) else 0
    span = settings.span
    ids = tokenize(text, loaded.tokenizer, span.positions + 1 + slice_length)
    window, rest = ids[:, : span.positions + 1], ids[:, span.positions + 1 :]

    runs = 1 + len(settings.recipes) + 2 * len(settings.stress_recipes)
    progress = tqdm(total=runs * span.positions, unit="tok", disable=None)
    announce(progress, "reference (eager, float32)")
    reference, speed = run_reference(loaded.model, window, span, progress.update)
    means = calibrate_means(loaded.model, rest) if slice_length else []
    return Bench(settings, loaded, window, reference, operands, means, progress), speed


def stress_row(bench: Bench, recipe: str, rows: list[dict]) -> dict:
    """The same recipe without and with the stress; an unstressed row is reused when there is one."""
    plain = next((row for row in rows if row["recipe"] == recipe), None)
    if plain is None:
        plain = bench.row(recipe, stressed=False)
    else:
        bench.progress.update(bench.settings.span.positions)
    stressed = bench.row(recipe, stressed=True)
    return {
        "recipe": recipe,
        "unstressed": plain,
        "stressed": stressed,
        "kl_ratio": ratio(stressed["kl_mean"], plain["kl_mean"]),
        "ppl_ratio": ratio(stressed["ppl"], plain["ppl"]),
    }


def ratio(a: float, b: float) -> float:
    """a / b, infinite for a division by zero."""
    return a / b if b else float("inf")


def check_model(loaded: LoadedModel, settings: Settings) -> None:
    """Refuse models and sizes that cannot be evaluated, with the reason."""
    config = loaded.model.config.get_text_config(decoder=True)
    layers = len(attention_modules(loaded.model))
    if layers != config.num_hidden_layers:
        raise EvalError(
            f"--model {loaded.name}: {layers} of {config.num_hidden_layers} layers have self-attention with an o_proj; "
            "only models of the Llama and Gemma 3 kind can be evaluated"
        )
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and settings.span.positions > limit:
        raise EvalError(
            f"--context plus --decode is {settings.span.positions} tokens but the model allows {limit}; shorten them"
        )
    heads = config.num_hidden_layers * config.num_attention_heads * head_dim_of(config)
    needed = 4 * settings.span.positions * (config.vocab_size + heads)
    if needed > 0.8 * available_memory():
        raise EvalError(
            f"the reference run would keep {needed / 1e9:.1f} GB of log-probabilities and attention outputs but "
            f"{available_memory() / 1e9:.1f} GB of memory are free; shorten --context"
        )


def describe_model(loaded: LoadedModel) -> dict:
    """Shape and checksum of the evaluated model."""
    config = loaded.model.config.get_text_config(decoder=True)
    return {
        "name": loaded.name,
        "sha256": loaded.sha256,
        "architecture": type(loaded.model).__name__,
        "parameters": loaded.model.num_parameters(),
        "layers": config.num_hidden_layers,
        "q_heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": head_dim_of(config),
        "sliding_window": getattr(config, "sliding_window", None),
        "bf16_bytes_per_token": bf16_bytes_per_token(config),
    }


def describe_settings(bench: Bench) -> dict:
    """What a reader needs to repeat the run."""
    span = bench.settings.span
    return {
        "context": span.context,
        "decode": span.decode,
        "chunk": span.chunk,
        "stress": bench.settings.stress,
        "threads": torch.get_num_threads(),
        "calibration_tokens": CALIBRATION_TOKENS if bench.means else 0,
    }


def describe_reference(bench: Bench, speed: Speed) -> dict:
    """Figures of the reference run itself."""
    nll, context = bench.reference.nll, bench.settings.span.context
    return {
        "attention": "eager, float32",
        "ppl": perplexity(nll),
        "ppl_prefill": perplexity(nll[:context]),
        "ppl_decode": perplexity(nll[context:]),
        **speed.figures(bench.settings.span),
    }
