"""Writes by slot into pages of the caller: rotated as `PagedCache.write_slots` does, and K alone where V is part of it."""

import numpy as np
import pytest
import torch

import mpfa

RNG = np.random.default_rng(17)
PAGE, KV_HEADS, HEADS, D, DV = 16, 2, 4, 64, 32
TABLE = [5, 2, 7]
SLOTS = np.array([5 * PAGE + 3, -1, 2 * PAGE, 2 * PAGE + 15, 7 * PAGE + 1, 5 * PAGE + 4])
POSITIONS = np.array([40, -1, 0, 99, 3, 41])


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def tables(half, rows=100):
    angles = np.arange(rows)[:, None] * 100.0 ** (-np.arange(half) / half)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


ROPES = [
    mpfa.Rope(*tables(D // 2)),
    mpfa.Rope(*tables(D // 2), interleaved=True),
    mpfa.Rope(*(torch.from_numpy(x).bfloat16() for x in tables(5)), begin=40),
    mpfa.Rope(*tables(7), interleaved=True, begin=33),
]


def view_of(k, v, recipe, tokens=0, **options):
    return mpfa.PageView(k, v, page_table=np.array([TABLE]), lengths=[tokens], recipe=recipe, **options)


def cache_of(recipe, **options):
    return mpfa.PagedCache(
        recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=D, head_dim_v=DV, page_size=PAGE, capacity=8 * PAGE, **options
    )


def new_pages(name):
    return [mpfa.Pages.empty(8, PAGE, KV_HEADS, d, format=name, order="HND") for d in (D, DV)]


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8_e4m3", "int8_g32", "bf16"])
def test_rotated_keys_have_the_bytes_of_a_cache(name, rope):
    recipe = f"q=f32,k={name},v={name},p=f32"
    n, skipped = 41, 7
    k, v, q = normal(n, KV_HEADS, D), normal(n, KV_HEADS, DV), normal(n, HEADS, D)
    kept = np.delete(np.arange(n), skipped)
    positions, slots = RNG.integers(0, 100, n), np.full(n, -1)
    positions[skipped], slots[kept] = 100, [page * PAGE + t for page in TABLE for t in range(PAGE)][: n - 1]
    pages, plain = new_pages(name), new_pages(name)
    call = {"rope": rope, "positions": positions}
    counters, turned = view_of(*pages, recipe).write_slots(k, v, slots, **call, rotate_q=q)
    cache, other = cache_of(recipe), cache_of(recipe)
    at = positions[kept][None]
    want = cache.append(k[None, kept], v[None, kept], rope=rope, positions=at, rotate_q=q[None, kept])
    np.testing.assert_array_equal(turned[kept], want[0])
    assert counters == cache.counters
    other.import_pages(0, *pages, TABLE, n - 1)
    assert other.save(0) == cache.save(0)
    # float32 keys that the same call has turned, written as they are: nothing is rounded in between.
    _, rows = view_of(*new_pages(name), recipe).write_slots(k, v, slots, **call, rotate_q=k)
    view_of(*plain, recipe).write_slots(rows, v, slots)
    for mine, same in zip(pages, plain):
        assert np.array_equal(mine.data, same.data)
        assert mine.scales is None or np.array_equal(mine.scales, same.scales)


def test_queries_may_stand_elsewhere():
    rope = ROPES[0]
    view = view_of(*new_pages("fp8_e4m3"), None)
    k, v, q = torch.randn(2, KV_HEADS, D), torch.randn(2, KV_HEADS, DV), torch.randn(3, 7 * KV_HEADS, D).bfloat16()
    cache = mpfa.PagedCache("q=f32,kv=fp8_e4m3,p=f32", q_heads=14, kv_heads=KV_HEADS, head_dim=D, head_dim_v=DV)
    at = {"positions": [4, 5], "q_positions": torch.tensor([9, 0, 99])}
    _, turned = view.write_slots(k, v, [0, 1], rope=rope, rotate_q=q, **at)
    cache.append(k[None], v[None], rope=rope, positions=[[4, 5]])
    assert turned.dtype == torch.bfloat16 and turned.shape == q.shape
    assert torch.equal(turned, cache.write_slots(k, v, [40, 41], rope=rope, rotate_q=q, **at))
    assert view.write_slots(k, v, [0, 1])["nonfinite"] == 0


@pytest.mark.parametrize("recipe", ["kv=mxfp4,centre=static", "kv=nvfp4,p=f32", "q=f32,kv=f32,p=f32"])
def test_latent_views_take_keys_alone_and_read_as_a_latent_cache(recipe):
    name = recipe.partition("kv=")[2].partition(",")[0]
    k_mean = 3 * normal(KV_HEADS, D) if "static" in recipe else None
    rope = mpfa.Rope(*tables(8), interleaved=True, begin=DV + 4)
    k, q = normal(40, KV_HEADS, D), normal(1, 1, HEADS, D)
    pages = mpfa.Pages.empty(8, PAGE, KV_HEADS, D, format=name)
    view = view_of(pages, None, recipe, 40, head_dim_v=DV, k_mean=k_mean)
    slots = np.array([page * PAGE + t for page in TABLE for t in range(PAGE)])[:40]
    counters = view.write_slots(k, None, slots, rope=rope, positions=np.arange(40))
    assert counters["nonfinite"] == 0
    cache = cache_of(recipe, shared_kv=True, k_mean=k_mean)
    cache.append(k[None], rope=rope)
    out, lse = view.attend(q, return_lse=True)
    want, want_lse = cache.attend(q, return_lse=True)
    assert out.shape == (1, 1, HEADS, DV) and np.array_equal(out, want) and np.array_equal(lse, want_lse)
    assert "v=None" in repr(view)


def test_what_does_not_fit_is_refused_with_nothing_written():
    pages = new_pages("mxfp4")
    recipe = "kv=mxfp4,centre=none,p=f32"
    view, latent = view_of(*pages, recipe), view_of(pages[0], None, recipe, head_dim_v=DV)
    k, v, rope = normal(6, KV_HEADS, D), normal(6, KV_HEADS, DV), ROPES[0]
    late = mpfa.Rope(*tables(8), begin=DV)
    cases = [
        (lambda: view.write_slots(k, v, SLOTS, rope=rope), "rope.positions is null"),
        (lambda: view.write_slots(k, v, SLOTS, rope=tables(3)), "mpfa.Rope is needed"),
        (lambda: view.write_slots(k, v, SLOTS, positions=POSITIONS), "belong to rope"),
        (lambda: view.write_slots(k, v, SLOTS, rope=rope, positions=POSITIONS, q_positions=[1]), "belong to rotate_q"),
        (lambda: view.write_slots(k, v, SLOTS, rope=rope, positions=POSITIONS[:4]), "positions has 4 entries"),
        (lambda: view.write_slots(k, v, SLOTS, rope=rope, positions=POSITIONS + 1), "at position 100"),
        (lambda: view.write_slots(k, v, SLOTS, rope=rope, positions=POSITIONS, rotate_q=k[:2]), "rope.q has shape"),
        (
            lambda: view.write_slots(k, v, SLOTS, rope=rope, positions=POSITIONS, rotate_q=normal(6, 3, D)),
            "3 query heads over 2 KV heads",
        ),
        (lambda: view.write_slots(k, None, SLOTS), "v is None; this view has pages of V"),
        (lambda: latent.write_slots(k, v, SLOTS), "v is given; V of this view is part of K, so pass None"),
        (lambda: latent.write_slots(k, None, SLOTS, rope=rope, positions=POSITIONS), "take rope.begin 32 or more"),
        (lambda: latent.write_slots(k, None, SLOTS, rope=late), "rope.positions is null"),
        (lambda: view_of(pages[0], None, recipe), "PageView: v is None and head_dim_v is None"),
        (lambda: view_of(*pages, recipe, head_dim_v=DV), "PageView: v is given and head_dim_v is 32"),
        (lambda: view_of(pages[0], None, recipe, head_dim_v=D + 1), "take head_dim_v <= head_dim"),
        (lambda: view_of(pages[0], None, recipe + ",rotate=qk", head_dim_v=DV), "rotate=qk would leave V rotated"),
        (lambda: view_of(pages[0], None, "k=mxfp4,v=nvfp4,centre=none", head_dim_v=DV), "take one format for both"),
    ]
    for call, reason in cases:
        with pytest.raises(mpfa.MpfaError, match=reason):
            call()
    assert not any(x.data.any() or x.scales.any() for x in pages)
    view.write_slots(k, v, SLOTS)  # a refused call leaves nothing behind
    assert pages[0].data.any()
