"""Bad input of every kind raises MpfaError with a usable text; good input is never modified."""

import hashlib

import numpy as np
import pytest

import mpfa
from mpfa.arguments import core_options

RNG = np.random.default_rng(23)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


Q, K, V = normal(2, 3, 4, 32), normal(2, 9, 2, 32), normal(2, 9, 2, 32)


def cache(**changes):
    return mpfa.PagedCache(
        **({"recipe": "mxfp4", "q_heads": 4, "kv_heads": 2, "head_dim": 32, "batch": 2} | changes)
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"recipe": "mxfp5"}, "mxfp4"),
        ({"recipe": 3}, "recipe"),
        ({"recipe": "mxfp4,colour=red"}, "colour"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": 32.0}, "head_dim"),
        ({"head_dim": 4096}, "head_dim"),
        ({"head_dim": 2**80}, "head_dim"),
        ({"kv_heads": 3}, "3 KV heads"),
        ({"kv_heads": True}, "kv_heads"),
        ({"batch": 0}, "batch"),
        ({"batch": 2**40}, "batch"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": 10**6}, "page_size"),
        ({"capacity": -1}, "capacity"),
        ({"capacity": 2**60}, "num_pages"),
        ({"k_mean": np.zeros((2, 31), np.float32)}, r"k_mean has shape \[2, 31\]"),
        ({"k_mean": np.zeros((2, 32), np.float32)}, "k_mean"),
        ({"recipe": "mpfa_static"}, "k_mean is missing"),
        ({"k_scale": "x"}, "k_scale is a str"),
    ],
    ids=lambda x: None if isinstance(x, str) else "-".join(f"{k}={v}"[:24] for k, v in x.items()),
)
def test_cache_settings(changes, message):
    with pytest.raises(mpfa.MpfaError, match=message):
        cache(**changes)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((K[0], V[0]), r"k has shape \[9, 2, 32\]"),
        ((K, V[:, :8]), r"v has shape \[2, 8, 2, 32\]"),
        ((K[..., :16], V), r"k has shape"),
        ((K[:1], V[:1]), "1 sequences"),
        ((K.astype(np.float64), V), "float"),
        ((K.astype(np.int8), V), "k has an element type"),
        ((K.astype(">f4"), V), "k is a ndarray"),
        (("k", V), "k is a str"),
        ((None, V), "k is a NoneType"),
        (([[1.0]], V), "k is a list"),
        ((K, V, None, [0, 2]), "sequence 2"),
        ((K, V, None, [0, 0]), "twice"),
        ((K, V, None, [0]), "one id each"),
        ((K, V, None, [0, 2**40]), "not an id"),
        ((K, V, None, ["a", 1]), "integers"),
        ((K, V, None, None, [9, 10]), r"counts\[1\] is 10"),
        ((K, V, None, None, [9, -1]), r"counts\[1\] is -1"),
        ((K, V, None, None, np.float32([1, 2])), "int32 or int64"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_append(arguments, message):
    c = cache()
    with pytest.raises(mpfa.MpfaError, match=message):
        c.append(*arguments)
    assert c.lengths == (0, 0) and c.free_pages == c.num_pages


@pytest.mark.parametrize(
    "q, options, message",
    [
        (Q[0], {}, "cu_seqlens"),
        (Q[:1], {}, "1 sequences"),
        (Q[:, :, :3], {}, "q has shape"),
        (Q[..., :16], {}, "q has shape"),
        (Q.astype(np.float64), {}, "float64"),
        (Q.astype(np.int32), {}, "int32"),
        (None, {}, "NoneType"),
        (3.0, {}, "float"),
        (Q, {"softmax_scale": "big"}, "softmax_scale"),
        (Q, {"softmax_scale": 0}, "softmax_scale"),
        (Q, {"softmax_scale": -1.0}, "softmax_scale"),
        (Q, {"softmax_scale": float("nan")}, "softmax_scale"),
        (Q, {"softcap": -1.0}, "softcap"),
        (Q, {"softcap": float("inf")}, "softcap"),
        (Q, {"causal": "yes"}, "causal"),
        (Q, {"window": 3}, "window"),
        (Q, {"window": (1, 2, 3)}, "window"),
        (Q, {"window": (-2, 0)}, "window"),
        (Q, {"window": (1.5, 0)}, "window"),
        (Q, {"sinks": np.zeros(3, np.float32)}, r"sinks has shape \[3\]"),
        (Q, {"sinks": np.zeros(4, np.int32)}, "sinks is int32"),
        (Q, {"alibi_slopes": np.zeros((4, 1), np.float32)}, "alibi_slopes has shape"),
        (Q, {"mask": np.zeros((3, 8), bool)}, "mask has shape"),
        (Q, {"mask": np.zeros((3, 9), np.int32)}, "mask is int32"),
        (Q, {"mask": np.zeros((3, 3, 3), bool)}, "mask"),
        (Q, {"threads": -1}, "threads"),
        (Q[0], {"cu_seqlens_q": [0, 1, 2]}, "cu_seqlens_q ends at 2"),
        (Q[0], {"cu_seqlens_q": [0, 3, 2, 3]}, "3 sequences"),
        (Q[0], {"cu_seqlens_q": [0, 2**62, 3]}, "cu_seqlens_q"),
        (Q[0], {"cu_seqlens_q": [0, -5, 3]}, "cu_seqlens_q"),
        (Q[0], {"cu_seqlens_q": []}, "cu_seqlens_q has 0 entries"),
        (Q[0], {"cu_seqlens_q": [1, 2, 3]}, "cu_seqlens_q"),
        (Q, {"cu_seqlens_q": [0, 3, 6]}, "q has shape"),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x) if isinstance(x, dict) else "",
)
def test_attend_over_a_cache(q, options, message):
    c = cache()
    c.append(K, V)
    with pytest.raises(mpfa.MpfaError, match=message):
        c.attend(q, **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mpfa.attend(Q, K, V[:, :8]),
        lambda: mpfa.attend(Q[:1], K, V),
        lambda: mpfa.attend(Q[:, :, :3], K, V),
        lambda: mpfa.attend(Q, K, None),
        lambda: mpfa.attend(Q, K, V, cu_seqlens_k=[0, 9]),
        lambda: mpfa.attend(Q[0], K[0], V[0], cu_seqlens_q=[0, 3], cu_seqlens_k=[0, 8]),
        lambda: mpfa.attend(Q[0], K[0], V[0], cu_seqlens_q=[0, 3], cu_seqlens_k=[9, 0]),
        lambda: mpfa.attend(Q, K, V, recipe="nvfp4", softcap=-2.0),
        lambda: mpfa.attend(Q[..., :30], K[..., :30], V[..., :30], recipe="mpfa,rotate=qk,colour=1"),
        lambda: mpfa.attend(Q, K, V, recipe="direct_p_fast", mask=np.ones((3, 9), bool)),
        lambda: mpfa.attend(Q[:0], K[:0], V[:0]),
        lambda: mpfa.merge_states(Q, normal(2, 4, 3), Q, normal(2, 3, 4)),
        lambda: mpfa.merge_states(Q, None, Q, None),
        lambda: mpfa.quantize(Q, "fp9"),
        lambda: mpfa.quantize(Q[0, 0, 0], "mxfp4"),
        lambda: mpfa.quantize(Q, "fp8_e4m3_static"),
        lambda: mpfa.quantize(Q, "fp8_e4m3_static", scale=[1.0, 2.0]),
        lambda: mpfa.quantize(Q, "nvfp4@keys"),
        lambda: mpfa.dequantize(Q),
        lambda: mpfa.supports("mxfp4", q_heads=4, kv_heads=2, head_dim=32, device="gpu"),
        lambda: mpfa.bytes_per_token("mxfp4", q_heads=4, kv_heads=3, head_dim=32),
        lambda: cache().free_sequence(2),
        lambda: cache().copy_page(0, 10**6),
        lambda: cache().set_pages(0, [1]),
        lambda: cache().set_pages(0, None),
        lambda: cache().reserve(-1),
        lambda: cache().reserve(2**61),
    ],
)
def test_other_calls(call):
    with pytest.raises(mpfa.MpfaError) as caught:
        call()
    assert len(str(caught.value)) > 20


def test_the_error_is_a_value_error():
    assert issubclass(mpfa.MpfaError, ValueError) and mpfa.MpfaError.__module__ == "mpfa"


def digest(*arrays):
    return [hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest() for x in arrays]


@pytest.mark.parametrize("recipe", [r for r in mpfa.recipes() if r != "mpfa_static"])
def test_inputs_are_never_modified(recipe):
    q, k, v = normal(1, 64, 4, 32), normal(1, 64, 2, 32), normal(1, 64, 2, 32)
    mask, sinks, table = RNG.random((64, 64)) > 0.2, normal(4), np.int32([0, 64])
    before = digest(q, k, v, mask, sinks, table)
    c = mpfa.PagedCache(recipe, q_heads=4, kv_heads=2, head_dim=32, page_size=128)
    c.append(k, v, q=q, counts=[64])
    c.seal()
    c.attend(q[:, -1:], sinks=sinks)
    mpfa.attend(q, k, v, recipe=recipe, sinks=sinks, causal=True)
    mpfa.attend(q[0], k[0], v[0], recipe=recipe, cu_seqlens_q=table, cu_seqlens_k=table)
    if recipe in ("bf16", "fp8", "mxfp4", "mpfa"):
        mpfa.attend(q, k, v, recipe=recipe, mask=mask)
    mpfa.quantize(q, "nvfp4")
    mpfa.flash_attn_with_kvcache(q, k, v, cache_seqlens=60)
    mpfa.merge_states(q, sinks[None, :, None] + np.zeros((1, 4, 64), np.float32), q, np.zeros((1, 4, 64), np.float32))
    assert digest(q, k, v, mask, sinks, table) == before


def test_outputs_stay_inside_their_memory():
    c = cache()
    c.append(K, V)
    around = np.full((4, 5, 6, 34), 77.0, np.float32)
    out = around[1:3, 1:4, 1:5, 1:33]
    lse = np.full((2, 4, 3), np.nan, np.float32)
    c._core.attend(Q, out, lse, core_options(causal=True))
    expected, expected_lse = c.attend(Q, return_lse=True)
    assert np.array_equal(out, expected) and np.array_equal(lse, expected_lse)
    out[...] = 77
    assert (around == 77).all()
