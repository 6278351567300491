"""Capacity planner: how much cache memory large models need with each recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mpfa

CARD_BYTES = 80e9
CONTEXTS = (32_768, 131_072)


@dataclass(frozen=True)
class ModelShape:
    """What the size of a KV cache and of 16-bit weights depends on."""

    name: str
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    parameters: float

    @property
    def weight_bytes(self) -> float:
        """Size of the weights in bf16."""
        return 2 * self.parameters


MODELS = (
    ModelShape("Llama-3.1-8B", layers=32, q_heads=32, kv_heads=8, head_dim=128, parameters=8.030e9),
    ModelShape("Qwen3-14B", layers=40, q_heads=40, kv_heads=8, head_dim=128, parameters=14.768e9),
)


def bytes_per_token(recipe: str, shape: ModelShape) -> float:
    """Packed bytes of one token over all layers."""
    per_layer = mpfa.bytes_per_token(recipe, q_heads=shape.q_heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    return per_layer * shape.layers


def sequences_that_fit(bytes_per_sequence: float, shape: ModelShape, card_bytes: float = CARD_BYTES) -> int:
    """Whole sequences beside the bf16 weights; activations are not counted."""
    return max(0, int((card_bytes - shape.weight_bytes) // bytes_per_sequence))


def capacity_row(recipe: str, shape: ModelShape, context: int) -> dict:
    """One line of the capacity table; gigabytes are 10^9 bytes."""
    per_token = bytes_per_token(recipe, shape)
    per_sequence = per_token * context
    return {
        "recipe": recipe,
        "model": shape.name,
        "context": context,
        "bytes_per_token": per_token,
        "cache_gb": per_sequence / 1e9,
        "sequences_on_80gb": sequences_that_fit(per_sequence, shape),
    }


def plan_capacity(recipes: Sequence[str]) -> list[dict]:
    """Rows for every recipe, model and context length; an override is left out beside its named recipe."""
    return [
        capacity_row(recipe, shape, context)
        for recipe in recipes
        if "," not in recipe or recipe.split(",")[0] not in recipes
        for shape in MODELS
        for context in CONTEXTS
    ]
