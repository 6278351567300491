"""Attention over a prefix that all sequences share, read once for all of them, merged with each one's own tokens."""

import numpy as np
import pytest

import mpfa

RNG = np.random.default_rng(8)
BATCH, PREFIX, KV_HEADS, Q_HEADS, DIM = 3, 150, 2, 6, 64
SUFFIX = [9, 1, 70]


def rows(batch, tokens, heads):
    return RNG.standard_normal((batch, tokens, heads, DIM), dtype=np.float32)


def cache_of(recipe, batch):
    return mpfa.PagedCache(recipe, batch=batch, q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=DIM)


@pytest.mark.parametrize("recipe", ["q=f32,k=mxfp4,v=nvfp4,p=f32", "q=f32,k=int8,v=fp8_e4m3,p=f32,centre=mean"])
@pytest.mark.parametrize("q_rows", [1, 4])
def test_prefix_and_suffix_merge_to_the_whole(recipe, q_rows):
    prefix, suffix, whole = cache_of(recipe, 1), cache_of(recipe, BATCH), cache_of(recipe, BATCH)
    k, v = rows(1, PREFIX, KV_HEADS), rows(1, PREFIX, KV_HEADS)
    prefix.append(k, v)
    whole.append(np.repeat(k, BATCH, 0), np.repeat(v, BATCH, 0))
    own_k, own_v = rows(BATCH, max(SUFFIX), KV_HEADS), rows(BATCH, max(SUFFIX), KV_HEADS)
    counts = [max(n, q_rows) for n in SUFFIX]
    suffix.append(own_k, own_v, counts=counts)
    whole.append(own_k, own_v, counts=counts)

    q = rows(BATCH, q_rows, Q_HEADS)
    # Every row sees the whole prefix, so the rows of all sequences are one call.
    together = q.reshape(1, BATCH * q_rows, Q_HEADS, DIM)
    o_prefix, lse_prefix = prefix.attend(together, causal=False, return_lse=True)
    lse_prefix = lse_prefix.reshape(Q_HEADS, BATCH, q_rows).swapaxes(0, 1)
    o_own, lse_own = suffix.attend(q, causal=True, return_lse=True)
    out, lse = mpfa.merge_states(o_prefix.reshape(q.shape), np.ascontiguousarray(lse_prefix), o_own, lse_own)

    want, want_lse = whole.attend(q, causal=True, return_lse=True)
    # centre=mean takes other means for the suffix alone, which changes its codes; the rest is exact.
    tolerance = 2e-5 if "centre" not in recipe else 0.05
    assert np.abs(out - want).max() <= tolerance
    assert np.abs(lse - want_lse).max() <= tolerance
