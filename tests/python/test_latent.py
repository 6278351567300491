"""Latent caches (shared_kv): K alone goes in, V is its first channels."""

import numpy as np
import pytest
from oracle import EXACT, attention, relative_error

import mpfa

RNG = np.random.default_rng(11)
D, DV = 576, 512


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def latent(recipe, q_heads=16, **options):
    return mpfa.PagedCache(recipe, q_heads=q_heads, kv_heads=1, head_dim=D, head_dim_v=DV, shared_kv=True, **options)


@pytest.mark.parametrize(("recipe", "bound"), [(EXACT, 1e-5), ("bf16", 1e-2), ("kv=fp8_e4m3,p=f32", 0.05),
                                               ("kv=nvfp4,p=f32,centre=mean", 0.2)])
@pytest.mark.parametrize("heads", [1, 16, 128])
def test_values_are_the_first_channels_of_keys(recipe, bound, heads):
    k, q = normal(2, 90, 1, D), normal(2, 1, heads, D)
    cache = latent(recipe, heads, batch=2)
    cache.append(k[:, :80])
    cache.append(k[:, 80:])
    assert relative_error(cache.attend(q), attention(q, k, k[..., :DV])[0]) < bound


def test_bytes_are_counted_once_and_sequences_are_edited():
    shape = {"q_heads": 128, "kv_heads": 1, "head_dim": D, "head_dim_v": DV}
    assert mpfa.bytes_per_token("kv=mxfp4", **shape, shared_kv=True) == 576 // 2 + 18
    cache = latent("kv=mxfp4", batch=2, page_size=16)
    assert cache.bytes_per_token == 306
    k, q = normal(1, 40, 1, D), normal(2, 1, 16, D)
    cache.append(k, sequences=[0])
    cache.fork(0, 1)
    out = cache.attend(q[[0, 0]])
    assert np.array_equal(out[0], out[1])
    cache.truncate(1, 20)
    cache.free_sequence(0)
    cache.load(0, cache.save(1))
    out = cache.attend(q[[0, 0]])
    assert np.array_equal(out[0], out[1])
    slots = latent("kv=mxfp4", capacity=64)
    slots.write_slots(k[0], None, np.arange(40))
    assert slots.free_pages == slots.num_pages - 1


def test_what_does_not_fit_is_refused():
    k = normal(1, 4, 1, D)
    with pytest.raises(mpfa.MpfaError, match="pass k alone"):
        latent("kv=mxfp4").append(k, k[..., :DV])
    with pytest.raises(mpfa.MpfaError, match="v is missing"):
        mpfa.PagedCache("mxfp4", q_heads=1, kv_heads=1, head_dim=D).append(k)
    for recipe, reason in [("mpfa", "k=nvfp4 and v=fp8_e4m3"), ("kv=mxfp4,rotate=qk", "rotate=qkv")]:
        with pytest.raises(mpfa.MpfaError, match=reason):
            latent(recipe)
    with pytest.raises(mpfa.MpfaError, match="shared_kv"):
        mpfa.bytes_per_token("mpfa", q_heads=1, kv_heads=1, head_dim=D, head_dim_v=DV, shared_kv=True)
