"""Calibrated means of queries, keys and values, for recipes that take them (centre=static and the like)."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

import mpfa
from mpfa.eval.metrics import attention_modules
from mpfa.eval.settings import head_dim_of
from mpfa.integrations.transformers import StaticMeans

OBSERVER = "mpfa_observer"
_observed: dict[int, StaticMeans] = {}


def _observe(module, query, key, value, attention_mask, **kwargs):
    """Eager attention that also notes the means of q, k, v [1, heads, s, d] over the tokens."""
    _observed[module.layer_idx] = StaticMeans(
        k=key.float().mean(dim=(0, 2)), q=query.float().mean(dim=(0, 2)), v=value.float().mean(dim=(0, 2))
    )
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, attention_mask, **kwargs)


@torch.inference_mode()
def calibrate_means(model, ids: torch.Tensor) -> list[StaticMeans]:
    """One reference pass over ids [1, n]; post-RoPE means per layer."""
    AttentionInterface.register(OBSERVER, _observe)
    AttentionMaskInterface.register(OBSERVER, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.set_attn_implementation(OBSERVER)
    _observed.clear()
    model.base_model(input_ids=ids, use_cache=False)
    means = [_observed[layer] for layer in attention_modules(model)]
    _observed.clear()
    return means


def operands_with_static_means(recipe: str, config) -> frozenset[str]:
    """Which of "k", "q", "v" need calibrated means in this recipe; MpfaError when the model's shape does not fit.

    The cache refuses missing and unused means alike, so exactly one combination is accepted.
    """
    shape = {
        "q_heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": head_dim_of(config),
    }
    zeros = {
        operand: np.zeros((shape["q_heads" if operand == "q" else "kv_heads"], shape["head_dim"]), np.float32)
        for operand in "kqv"
    }
    refusal = None
    for operands in itertools.chain.from_iterable(itertools.combinations("kqv", n) for n in range(4)):
        try:
            mpfa.PagedCache(recipe, **shape, **{f"{operand}_mean": zeros[operand] for operand in operands})
        except mpfa.MpfaError as error:
            refusal = refusal or error
        else:
            return frozenset(operands)
    raise refusal


def select_means(means: list[StaticMeans], operands: frozenset[str]) -> list[StaticMeans] | None:
    """The means of some operands only; None for no operand."""
    if not operands:
        return None
    unused = {operand: None for operand in "kqv" if operand not in operands}
    return [replace(layer, **unused) for layer in means]
