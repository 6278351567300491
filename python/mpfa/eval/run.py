"""Teacher-forced runs of a model: chunked prefill, then token-by-token decode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from mpfa.eval.metrics import Comparison, ReferenceRecord, tap_attention_outputs
from mpfa.eval.settings import Span
from mpfa.integrations.transformers import NAME

Progress = Callable[[int], None]


@dataclass
class Speed:
    """Seconds spent in the model, without the comparison of its logits."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def figures(self, span: Span) -> dict:
        """Tokens per second of both phases."""
        return {
            "prefill_tokens_per_second": span.context / self.prefill_seconds,
            "decode_tokens_per_second": span.decode / self.decode_seconds,
        }


def teacher_forced(
    model, ids: torch.Tensor, cache, span: Span, consume: Callable[[torch.Tensor, int], None], progress: Progress
) -> Speed:
    """Feed ids [1, n + 1] through the cache; `consume(logits [s, vocab], start)` after each step."""
    speed = Speed()
    for begin, end in span.steps():
        started = time.perf_counter()
        logits = model(input_ids=ids[:, begin:end], cache=cache, use_cache=True).logits[0]
        seconds = time.perf_counter() - started
        if begin < span.context:
            speed.prefill_seconds += seconds
        else:
            speed.decode_seconds += seconds
        consume(logits, begin)
        progress(end - begin)
    return speed


@torch.inference_mode()
def run_reference(model, ids: torch.Tensor, span: Span, progress: Progress) -> tuple[ReferenceRecord, Speed]:
    """The model's own eager attention in float32 with an unquantised cache."""
    model.set_attn_implementation("eager")
    record = ReferenceRecord(ids[0, 1 : span.positions + 1], model.config.get_text_config().vocab_size)
    with tap_attention_outputs(model, record.add_attention):
        speed = teacher_forced(model, ids, DynamicCache(), span, record.add_logits, progress)
    record.finish()
    return record, speed


@torch.inference_mode()
def run_recipe(
    model, ids: torch.Tensor, cache, span: Span, reference: ReferenceRecord, progress: Progress
) -> tuple[Comparison, Speed]:
    """One recipe: the same tokens through attention and cache of this library."""
    model.set_attn_implementation(NAME)
    comparison = Comparison(reference)
    with tap_attention_outputs(model, comparison.add_attention):
        speed = teacher_forced(model, ids, cache, span, comparison.add_logits, progress)
    return comparison, speed
