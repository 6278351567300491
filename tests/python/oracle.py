"""Attention in float64 NumPy, written from the formula: what the tests compare with."""

from __future__ import annotations

import numpy as np


def attention(
    q, k, v, *, scale=None, causal=False, window=(-1, -1), softcap=0.0, sinks=None, alibi=None, mask=None
):
    """q [b, sq, hq, d], k [b, sk, hkv, d], v [b, sk, hkv, dv] -> out [b, sq, hq, dv], lse [b, hq, sq] in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    logits = np.einsum("bihd,bjhd->bhij", q, k) * scale
    if softcap > 0:
        logits = softcap * np.tanh(logits / softcap)
    sq, sk = q.shape[1], k.shape[1]
    position = np.arange(sq)[:, None] + sk - sq
    key = np.arange(sk)[None, :]
    seen = np.ones((sq, sk), bool)
    if causal:
        seen &= key <= position
    if window[0] >= 0:
        seen &= key >= position - window[0]
    if window[1] >= 0:
        seen &= key <= position + window[1]
    if alibi is not None:
        logits = logits - np.asarray(alibi, np.float64)[None, :, None, None] * np.abs(position - key)
    seen = np.broadcast_to(seen, logits.shape)
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype == bool:
            seen = seen & mask
        else:
            logits = logits + mask
            seen = seen & (mask > -np.inf)
    logits = np.where(seen, logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = np.asarray(sinks, np.float64)[None, :, None, None]
        top = np.maximum(top, sink)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(logits - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0]) + top[..., 0]
    out = np.einsum("bhij,bjhd->bihd", weights / np.where(total > 0, total, 1.0), v)
    return out, lse


def relative_error(x, y) -> float:
    """Relative L2 distance of x from y."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30))


EXACT = "q=f32,k=f32,v=f32,p=f32"  # a recipe that rounds nothing
