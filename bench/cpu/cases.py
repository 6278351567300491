"""What is measured: the grids, and MpFA's contestants for a case."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from timing import Contestant, Effort

import mpfa

RECIPES = ("bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4", "mpfa")
KINDS = ("decode", "prefill", "append")
PAST = 64  # tokens that a sequence has before a single one is appended
CHUNK = 4096  # tokens appended at once, so that no case holds its keys and values in float32


@dataclass(frozen=True)
class Case:
    """Attention of q_len rows over kv keys; for append, kv tokens go into an empty cache."""

    kind: str
    b: int
    q_len: int
    kv: int
    hq: int = 32
    hkv: int = 8
    d: int = 128

    def title(self) -> str:
        return f"{self.kind} b{self.b} q{self.q_len} kv{self.kv} {self.hq}/{self.hkv} heads d{self.d}"

    def flop(self) -> float:
        """Multiplications and additions of both products; causal prefill does about half of them."""
        pairs = self.q_len * self.kv if self.q_len == 1 else self.q_len * (self.q_len + 1) / 2
        return 4.0 * self.b * self.hq * self.d * pairs


def grid(quick: bool) -> list[Case]:
    if quick:
        return [
            Case("decode", 1, 1, 1024),
            Case("decode", 1, 1, 8192),
            Case("prefill", 1, 512, 512),
            Case("append", 1, 0, 1024),
        ]
    decode = [Case("decode", 1, 1, kv) for kv in (1024, 4096, 8192, 32768, 131072)]
    decode += [Case("decode", b, 1, 8192) for b in (2, 4, 8)]
    decode += [Case("decode", 8, 1, kv) for kv in (1024, 32768)]
    decode += [Case("decode", 1, 1, kv, d=d) for d in (64, 256) for kv in (1024, 8192, 32768)]
    prefill = [Case("prefill", 1, n, n) for n in (512, 2048, 4096, 8192, 16384)]
    prefill += [Case("prefill", 1, 2048, 2048, d=d) for d in (64, 256)]
    append = [Case("append", 1, 0, 4096), Case("append", 64, 0, 1)]
    return [*decode, *prefill, *append]


def effort_for(case: Case, effort: Effort) -> Effort:
    """Prompts of 8k tokens and more take seconds a call, which needs fewer rounds to be steady."""
    return effort if case.q_len < 8192 else replace(effort, rounds=min(effort.rounds, 3))


@cache
def operand_format(recipe: str, operand: str) -> str:
    """Storage format of operand "k" or "v": the one whose explicit choice changes nothing."""
    for name in mpfa.formats():
        try:
            if mpfa.recipe_text(f"{recipe},{operand}={name}") == mpfa.recipe_text(recipe):
                return name
        except mpfa.MpfaError:
            continue  # a format that the rest of the recipe rules out
    raise ValueError(f"recipe {recipe}: no storage format of {operand} found")


@cache
def level2_bytes() -> int:
    """Level-2 cache of all cores, 2 MiB each where the system does not tell."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text(encoding="utf-8").strip()
        size = int(text.rstrip("KM")) * (2**20 if text.endswith("M") else 2**10)
    except (OSError, ValueError):
        size = 2**21
    return size * torch.get_num_threads()


def copies_for(state_bytes: float) -> int:
    """Copies of a state to alternate between, so that none of it waits in the level-2 caches for the next call."""
    return max(1, math.ceil(2 * level2_bytes() / state_bytes))


@cache
def random_rows(b: int, tokens: int, heads: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn((b, tokens, heads, d), generator=torch.Generator().manual_seed(seed))


def chunks(case: Case):
    """(first token, k, v) in float32; the values repeat from chunk to chunk, which no timing depends on."""
    for first in range(0, case.kv, CHUNK):
        n = min(CHUNK, case.kv - first)
        k, v = (random_rows(case.b, min(CHUNK, case.kv), case.hkv, case.d, seed)[:, :n] for seed in (1, 2))
        yield first, k, v


def queries(case: Case) -> torch.Tensor:
    return random_rows(case.b, case.q_len, case.hq, case.d, 3)


def _filled_cache(case: Case, recipe: str) -> mpfa.PagedCache:
    shape = {"q_heads": case.hq, "kv_heads": case.hkv, "head_dim": case.d}
    cache_ = mpfa.PagedCache(recipe, batch=case.b, capacity=case.kv, **shape)
    for first, k, v in chunks(case):
        # Only the first append of a sequence reads q, for the means of recipes that centre it.
        q = random_rows(case.b, k.shape[1], case.hq, case.d, 4) if first == 0 else None
        cache_.append(k, v, q)
    return cache_


def contestant(case: Case, recipe: str) -> Contestant:
    """MpFA on a case. Quantising is part of append alone: decode and prefill read a cache that is already there."""
    if case.kind == "append":
        return _append_contestant(case, recipe)
    bytes_read = state_bytes(case, recipe)
    q = queries(case)
    caches = [_filled_cache(case, recipe) for _ in range(copies_for(bytes_read))]
    return Contestant(recipe, [lambda c=c: c.attend(q, causal=True) for c in caches], bytes_read)


def _append_contestant(case: Case, recipe: str) -> Contestant:
    """A prompt goes into an empty cache; a single token behind PAST others, as in a step of decoding."""
    past = PAST if case.kv == 1 else 0
    shape = {"q_heads": case.hq, "kv_heads": case.hkv, "head_dim": case.d}
    cache_ = mpfa.PagedCache(recipe, batch=case.b, capacity=case.kv + past, **shape)
    if past:
        heads = (case.hkv, case.hkv, case.hq)
        cache_.append(*(random_rows(case.b, past, n, case.d, seed) for seed, n in enumerate(heads, start=5)))
    _, k, v = next(chunks(case))
    q = random_rows(case.b, case.kv, case.hq, case.d, 4)

    def undo() -> None:
        for sequence in range(case.b):
            cache_.truncate(sequence, past)

    return Contestant(recipe, [lambda: cache_.append(k, v, q)], k.nbytes + v.nbytes, undo)


def state_bytes(case: Case, recipe: str) -> float:
    """Bytes of the packed keys and values of a case."""
    heads = {"q_heads": case.hq, "kv_heads": case.hkv}
    return case.b * case.kv * mpfa.bytes_per_token(recipe, **heads, head_dim=case.d)
