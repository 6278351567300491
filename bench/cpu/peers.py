"""What MpFA is compared with in the same run: scaled_dot_product_attention of PyTorch, and optionally ggml."""

from __future__ import annotations

import torch
from cases import Case, chunks, copies_for, queries
from timing import Contestant
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"torch_fp32": torch.float32, "torch_fp16": torch.float16, "torch_bf16": torch.bfloat16}


def torch_contestants(case: Case) -> list[Contestant]:
    make = _append if case.kind == "append" else _attention
    return [make(case, name, dtype) for name, dtype in DTYPES.items()]


def _empty_state(case: Case, dtype: torch.dtype) -> torch.Tensor:
    """K and V, [2, b, hkv, kv, d]: the layout that the function reads without a copy."""
    return torch.empty((2, case.b, case.hkv, case.kv, case.d), dtype=dtype)


def _filled_state(case: Case, dtype: torch.dtype) -> torch.Tensor:
    state = _empty_state(case, dtype)
    for first, k, v in chunks(case):
        for operand, rows in zip(state, (k, v), strict=True):
            operand[:, :, first : first + rows.shape[1]] = rows.transpose(1, 2)
    return state


def _attention(case: Case, name: str, dtype: torch.dtype) -> Contestant:
    q = queries(case).transpose(1, 2).to(dtype)
    bytes_read = 2 * case.b * case.kv * case.hkv * case.d * dtype.itemsize
    states = [_filled_state(case, dtype) for _ in range(copies_for(bytes_read))]

    @torch.inference_mode()
    def call(state: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, state[0], state[1], is_causal=case.q_len > 1, enable_gqa=True)

    return Contestant(name, [lambda s=s: call(s) for s in states], bytes_read)


def _append(case: Case, name: str, dtype: torch.dtype) -> Contestant:
    """Conversion of the same float32 rows into a dense cache."""
    state = _empty_state(case, dtype)
    _, k, v = next(chunks(case))

    def call() -> None:
        state[0].copy_(k.transpose(1, 2))
        state[1].copy_(v.transpose(1, 2))

    return Contestant(name, [call], k.nbytes + v.nbytes)
