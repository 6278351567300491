"""Stress `kbias`: one large constant vector added to every post-RoPE key.

Scores of a query move by the same amount for every key, so the softmax, and with it the unstressed
reference, does not change; a 4-bit block format, however, loses the digits that matter unless the
keys are centred.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from mpfa.integrations.transformers import MpfaCache, StaticMeans

LARGE, LARGE_COUNT = 300.0, 1
MEDIUM, MEDIUM_COUNT = 30.0, 4


def key_bias(layer: int, kv_heads: int, head_dim: int) -> torch.Tensor:
    """Deterministic bias [kv_heads, head_dim]: per head one channel of 300 and four of +-30."""
    bias = torch.zeros(kv_heads, head_dim)
    for head in range(kv_heads):
        generator = torch.Generator().manual_seed(1000 * layer + head)
        channels = torch.randperm(head_dim, generator=generator)[: LARGE_COUNT + MEDIUM_COUNT]
        signs = torch.randint(0, 2, (MEDIUM_COUNT,), generator=generator) * 2.0 - 1.0
        bias[head, channels[:LARGE_COUNT]] = LARGE
        bias[head, channels[LARGE_COUNT:]] = MEDIUM * signs
    return bias


class StressedCache(MpfaCache):
    """A packed cache whose keys arrive with the bias."""

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        bias = key_bias(layer_idx, key_states.shape[1], key_states.shape[3])
        stressed = key_states + bias[None, :, None, :].to(key_states.dtype)
        return super().update(stressed, value_states, layer_idx, *args, **kwargs)


def stressed_means(means: Sequence[StaticMeans]) -> list[StaticMeans]:
    """What calibration on the stressed model would have found."""
    return [
        m if m.k is None else dataclasses.replace(m, k=m.k + key_bias(layer, *m.k.shape))
        for layer, m in enumerate(means)
    ]
