"""Rotary embedding inside append and write_slots, and context shift on what they wrote."""

import numpy as np
import pytest

import mpfa

RNG = np.random.default_rng(3)
HEADS, KV_HEADS, DIM = 4, 2, 32


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


K, V, Q = normal(2, 60, KV_HEADS, DIM), normal(2, 60, KV_HEADS, DIM), normal(2, 60, HEADS, DIM)


def tables(half, rows=300):
    angles = np.arange(rows)[:, None] * 100.0 ** (-np.arange(half) / half)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turned(x, rope, positions):
    """x [n, s, heads, d] with row [i, j] at positions[i, j]."""
    half = rope.cos.shape[1]
    if rope.interleaved:
        a, b = (slice(rope.begin + i, rope.begin + 2 * half, 2) for i in (0, 1))
    else:
        a, b = (slice(rope.begin + i, rope.begin + i + half) for i in (0, half))
    c, s = rope.cos[positions][:, :, None], rope.sin[positions][:, :, None]
    y = x.copy()
    y[..., a], y[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
    return y


def new(recipe, **options):
    options = {"batch": 2, **options}
    return mpfa.PagedCache(recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, **options)


@pytest.mark.parametrize("recipe", ["mpfa", "mxfp4", "bf16", "fp8,recent=8"])
@pytest.mark.parametrize("rope", [mpfa.Rope(*tables(16)), mpfa.Rope(*tables(5), interleaved=True, begin=3)])
def test_append_with_rope_equals_append_of_rotated_rows(recipe, rope):
    fused, apart = new(recipe), new(recipe)
    index = np.tile(np.arange(60), (2, 1))
    moved = index + np.array([[7], [200]])
    for part, positions, where in ((slice(0, 40), None, index), (slice(40, 60), moved[:, 40:], moved)):
        q = fused.append(
            K[:, part], V[:, part], Q[:, part], rope=rope, positions=positions, rotate_q=Q[:, part][:, :3],
            q_positions=where[:, part][:, :3].tolist(),
        )
        want_q = turned(Q[:, part], rope, where[:, part])
        np.testing.assert_array_equal(q, want_q[:, :3])
        apart.append(turned(K[:, part], rope, where[:, part]), V[:, part], want_q)
    assert [fused.save(i) for i in (0, 1)] == [apart.save(i) for i in (0, 1)]


def test_write_slots_with_rope():
    rope = mpfa.Rope(*tables(16))
    fused, apart = new("mxfp4,centre=none", capacity=64), new("mxfp4,centre=none", capacity=64)
    positions = np.array([9, 4, 200], np.int32)
    q = fused.write_slots(K[0, :3], V[0, :3], [5, 6, 70], rope=rope, positions=positions, rotate_q=Q[0, :3])
    apart.write_slots(turned(K[:1, :3], rope, positions[None])[0], V[0, :3], [5, 6, 70])
    np.testing.assert_array_equal(q, turned(Q[:1, :3], rope, positions[None])[0])
    with pytest.raises(mpfa.MpfaError, match="rope.positions is null"):
        fused.write_slots(K[0, :3], V[0, :3], [5, 6, 70], rope=rope)


def test_remove_turns_later_keys_back():
    rope = mpfa.Rope(*tables(16))
    cache, fresh = new("k=f32,v=f32,p=f32", batch=1), new("k=f32,v=f32,p=f32", batch=1)
    cache.append(K[:1], V[:1], rope=rope)
    cache.remove(0, 10, 33, rope)
    kept = np.r_[0:10, 33:60]
    fresh.append(K[:1, kept], V[:1, kept], rope=rope)
    assert cache.lengths == (37,)
    np.testing.assert_allclose(cache.attend(Q[:1, :1]), fresh.attend(Q[:1, :1]), atol=2e-6)
    cache.shift(0, 0, 50, rope)
    cache.shift(0, 0, -50, rope)
    np.testing.assert_allclose(cache.attend(Q[:1, :1]), fresh.attend(Q[:1, :1]), atol=2e-6)


def test_shift_of_shared_pages_makes_a_growing_pool_larger():
    rope = mpfa.Rope(*tables(16))
    cache = new("bf16", page_size=16)
    cache.append(K[:1], V[:1], sequences=[0], rope=rope)
    cache.fork(0, 1)
    before = cache.save(1)
    while cache.free_pages:
        cache.write_slots(K[0, :1], V[0, :1], [16 * (cache.num_pages - cache.free_pages)])
    cache.shift(0, 0, 3, rope)
    assert cache.save(1) == before != cache.save(0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda c, r: c.append(K, V, rope=(1, 2)), "mpfa.Rope is needed"),
        (lambda c, r: c.append(K, V, positions=[[0]]), "belong to rope"),
        (lambda c, r: c.append(K, V, rope=r, q_positions=[0]), "belong to rotate_q"),
        (lambda c, r: c.append(K, V, rope=r, positions=[1, 2]), "positions has 2 entries; one for each of the 120"),
        (lambda c, r: c.append(K, V, rope=r, positions=np.full((2, 60), 300)), "at position 300"),
        (lambda c, r: c.append(K, V, rope=r, rotate_q=Q[:1]), "rope.q has shape"),
        (lambda c, r: c.append(K, V, rope=mpfa.Rope(r.cos[0], r.sin)), "rotary_dim / 2"),
        (lambda c, r: c.append(K, V, rope=mpfa.Rope(r.cos, r.sin, begin=1)), "at most the head dim 32"),
        (lambda c, r: c.append(K, V, rope=mpfa.Rope(r.cos, r.sin, interleaved=2)), "rope.interleaved is 2"),
        (lambda c, r: c.shift(0, 0, 5, None), "mpfa.Rope is needed"),
        (lambda c, r: c.shift(0, 1, 5, r), "not in 0..0"),
        (lambda c, r: c.remove(0, 0, 1), "not in 0..0"),
        (lambda c, r: c.remove(2, 0, 1), "sequence 2 is out of range"),
    ],
)
def test_refusals_change_nothing(call, message):
    cache = new("mxfp4")
    with pytest.raises(mpfa.MpfaError, match=message):
        call(cache, mpfa.Rope(*tables(16)))
    assert cache.lengths == (0, 0)


def test_flash_attn_with_a_packed_cache_rotates_in_the_append():
    torch = pytest.importorskip("torch")
    cos, sin = (torch.from_numpy(x) for x in tables(16))
    rope = mpfa.Rope(*tables(16), interleaved=True)
    k, v, q = (torch.from_numpy(x) for x in (K, V, Q))
    packed, apart = new("fp8"), new("fp8")
    for cache in (packed, apart):
        cache.append(k[:, :50], v[:, :50], rope=rope)
    out = mpfa.flash_attn_with_kvcache(q[:, 50:], packed, None, k[:, 50:], v[:, 50:], cos, sin, causal=True)
    turned_q = apart.append(k[:, 50:], v[:, 50:], rope=rope, rotate_q=q[:, 50:])
    assert torch.equal(out, apart.attend(turned_q))
    # Without causality or window all queries stand at the old length.
    out = mpfa.flash_attn_with_kvcache(q[:, :2], packed, None, k[:, :1], v[:, :1], cos, sin)
    turned_q = apart.append(k[:, :1], v[:, :1], rope=rope, rotate_q=q[:, :2], q_positions=[[60, 60], [60, 60]])
    assert torch.equal(out, apart.attend(turned_q, causal=False))
