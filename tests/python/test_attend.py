"""mpfa.attend on plain tensors, merging, supports, recipes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import EXACT, attention, relative_error

import mpfa

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": (3, 0)},
        {"window": (2, 4), "causal": True},
        {"window": (None, 1)},
        {"softcap": 2.0},
        {"softmax_scale": 0.3, "causal": True},
        {"sinks": np.float32([0.5, -1, 2, 0])},
        {"alibi_slopes": np.float32([0.5, 0.25, 0.1, 0])},
        {"mask": RNG.random((9, 13)) > 0.4},
        {"mask": np.where(RNG.random((2, 4, 9, 13)) > 0.4, RNG.standard_normal((2, 4, 9, 13)), -np.inf).astype("f4")},
        {"mask": np.zeros((9, 13), bool)},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_every_option_follows_the_formula(options):
    q, k, v = normal(2, 9, 4, 24), normal(2, 13, 2, 24), normal(2, 13, 2, 12)
    out, lse = mpfa.attend(q, k, v, recipe=EXACT, return_lse=True, **options)
    names = {"softmax_scale": "scale", "alibi_slopes": "alibi"}
    expected = {names.get(name, name): value for name, value in options.items()}
    if "window" in expected:
        expected["window"] = tuple(-1 if side is None else side for side in expected["window"])
    ref, ref_lse = attention(q, k, v, **expected)
    assert np.allclose(out, ref, atol=3e-6) and np.allclose(lse, ref_lse, atol=3e-6)


@pytest.mark.parametrize("recipe", mpfa.recipes())
def test_every_recipe_runs_close_to_exact(recipe):
    q, k, v = normal(1, 64, 4, 64), normal(1, 64, 2, 64), normal(1, 64, 2, 64)
    means = {}
    if recipe == "mpfa_static":
        means = {"k_mean": k.mean((0, 1)), "q_mean": q.mean((0, 1))}
    out = mpfa.attend(q, k, v, recipe=recipe, causal=True, **means)
    assert relative_error(out, attention(q, k, v, causal=True)[0]) < 0.3


@given(
    st.integers(1, 3),
    st.integers(0, 12),
    st.integers(0, 80),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4, 7]),
    st.sampled_from([1, 8, 40, 46, 64]),
    st.booleans(),
    st.integers(-1, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(batch, sq, sk, kv_heads, ratio, d, causal, left):
    q = normal(batch, sq, kv_heads * ratio, d)
    k, v = normal(batch, sk, kv_heads, d), normal(batch, sk, kv_heads, d)
    out, lse = mpfa.attend(q, k, v, recipe=EXACT, causal=causal, window=(left, -1), return_lse=True)
    ref, ref_lse = attention(q, k, v, causal=causal, window=(left, -1))
    assert np.allclose(out, ref, atol=1e-5) and np.allclose(lse, ref_lse, atol=1e-5)


def test_ragged_equals_one_by_one():
    lengths_q, lengths_k = [5, 0, 1, 7], [9, 3, 0, 4]
    cu_q, cu_k = np.cumsum([0, *lengths_q]), np.cumsum([0, *lengths_k]).astype(np.int32)
    q, k, v = normal(13, 4, 32), normal(16, 2, 32), normal(16, 2, 32)
    for recipe in (EXACT, "mxfp4", "mpfa"):
        out, lse = mpfa.attend(
            q, k, v, recipe=recipe, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True
        )
        for b in range(4):
            rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
            o, s = mpfa.attend(
                q[None, rows], k[None, keys], v[None, keys], recipe=recipe, causal=True, return_lse=True
            )
            assert np.array_equal(o[0], out[rows]) and np.array_equal(s[0], lse[:, rows])


def test_strided_inputs_equal_contiguous_ones():
    q, kv = normal(2, 6, 8, 64), normal(2, 40, 3, 2, 64)
    k, v = kv[:, ::2, 0], kv[:, ::2, 2]
    views = mpfa.attend(q[:, :, ::2, :32], k[..., 16:48], v[..., ::-1], recipe="mxfp4")
    copies = mpfa.attend(
        q[:, :, ::2, :32].copy(), k[..., 16:48].copy(), np.ascontiguousarray(v[..., ::-1]), recipe="mxfp4"
    )
    assert np.array_equal(views, copies)


def test_merge_of_two_halves_is_the_whole():
    q, k, v = normal(2, 5, 4, 16), normal(2, 20, 2, 16), normal(2, 20, 2, 16)
    parts = [mpfa.attend(q, k[:, s], v[:, s], recipe=EXACT, return_lse=True) for s in (slice(0, 7), slice(7, 20))]
    o, lse = mpfa.merge_states(*parts[0], *parts[1])
    whole, whole_lse = mpfa.attend(q, k, v, recipe=EXACT, return_lse=True)
    assert np.allclose(o, whole, atol=2e-6) and np.allclose(lse, whole_lse, atol=2e-6)
    ragged = mpfa.merge_states(parts[0][0][0], parts[0][1][0], parts[1][0][0], parts[1][1][0])
    assert np.array_equal(ragged[0], o[0]) and np.array_equal(ragged[1], lse[0])


def test_merge_with_nothing_changes_no_bit():
    o, lse = normal(1, 3, 2, 8), normal(1, 2, 3)
    nothing = np.zeros_like(o), np.full_like(lse, -np.inf)
    for merged in (mpfa.merge_states(o, lse, *nothing), mpfa.merge_states(*nothing, o, lse)):
        assert np.array_equal(merged[0], o) and np.array_equal(merged[1], lse)
    empty = mpfa.merge_states(*nothing, *nothing)
    assert np.array_equal(empty[0], nothing[0]) and np.array_equal(empty[1], nothing[1])


def test_supports_names_the_kernel_or_the_reasons():
    yes = mpfa.supports("mxfp4", q_heads=8, kv_heads=2, head_dim=128)
    assert yes and yes.kernel and not yes.reasons
    no = mpfa.supports("mxfp4", q_heads=8, kv_heads=2, head_dim=128, device="sm120")
    assert not no and no.reasons
    assert "multiple" in mpfa.supports("mxfp4", q_heads=8, kv_heads=3, head_dim=128).reasons[0]


def test_recipe_texts():
    assert mpfa.recipe_text("mxfp4") == "mxfp4"
    assert mpfa.recipe_text("mxfp4,centre=none") == mpfa.recipe_text("mxfp4,center=none")
    assert all(mpfa.recipe_source(name) for name in mpfa.recipes())
    with pytest.raises(mpfa.MpfaError, match="mxfp4"):
        mpfa.recipe_text("mxfp5")


def test_16_bit_inputs_give_16_bit_outputs():
    q, k, v = (normal(1, 4, 2, 32).astype(np.float16) for _ in range(3))
    out, lse = mpfa.attend(q, k, v, recipe="fp8", return_lse=True)
    assert out.dtype == np.float16 and lse.dtype == np.float32
