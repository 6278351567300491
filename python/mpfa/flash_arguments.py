"""Arguments of the flash_attn_* functions: aliases, hints that change nothing, and what has to stay unset."""

from __future__ import annotations

from mpfa import _core
from mpfa.arguments import core_options

_ALIASES = {
    "sm_scale": "softmax_scale",
    "scaling": "softmax_scale",
    "logits_soft_cap": "softcap",
    "s_aux": "sinks",
    "learnable_sink": "sinks",
    "page_table": "block_table",
    "return_lse": "return_softmax_lse",
}
_HINTS = {"num_splits", "pack_gqa", "sm_margin", "deterministic", "scheduler_metadata"}
_NEUTRAL = {
    "dropout_p": 0.0,
    "attention_chunk": 0,
    "qv": None,
    "q_descale": None,
    "k_descale": None,
    "v_descale": None,
    "cache_leftpad": None,
    "rotary_seqlens": None,
    "cu_seqlens_k_new": None,
    "seqused_q": None,
    "seqused_k": None,
}


def resolve(call: str, others: dict, **named) -> dict:
    """`named` with aliases from `others` merged in; refuses what has no meaning here."""
    for name, value in others.items():
        if name in _HINTS:
            continue
        if name in _NEUTRAL:
            named[name] = value
            continue
        target = _ALIASES.get(name, name)
        if target not in named:
            known = sorted({*named, *_ALIASES, *_HINTS} - {*_NEUTRAL})
            raise _core.MpfaError(f"{call}: argument {name} is not known; beside tensors there are {', '.join(known)}")
        named[target] = value
    for name, neutral in _NEUTRAL.items():
        value = named.pop(name, neutral)
        if value is not neutral and not (isinstance(value, (int, float)) and value == neutral):
            raise _core.MpfaError(
                f"{call}: {name} is {value!r}, which is not supported; leave it at {neutral!r} (the order of "
                "positional arguments is that of FlashAttention 2: give softmax_scale by name)"
            )
    return named


def call_options(resolved: dict, **others) -> tuple:
    """`core_options` of what `resolve` gave and the options that have one name only."""
    named = {name: resolved[name] for name in ("softmax_scale", "softcap", "sinks")}
    return core_options(**named, **others)


def output(result, return_softmax_lse: bool, return_attn_probs: bool = False):
    """What the caller asked for of (out, lse)."""
    if return_attn_probs:
        return (*result, None)
    return result if return_softmax_lse else result[0]
