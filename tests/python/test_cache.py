"""PagedCache: lifetime of sequences, closed-form results, memory, threads."""

import threading

import numpy as np
import pytest
from oracle import EXACT, attention, relative_error

import mpfa

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("recipe", ["bf16", "fp8", "mxfp4", "nvfp4", "int8", EXACT])
@pytest.mark.parametrize("page_size", [16, 64])
def test_uniform_attention_is_the_mean_for_every_length(recipe, page_size):
    cache = mpfa.PagedCache(recipe, q_heads=2, kv_heads=1, head_dim=32, page_size=page_size)
    for n in range(1, 70):
        cache.append(normal(1, 1, 1, 32), np.full((1, 1, 1, 32), 1.5, np.float32))
        out, lse = cache.attend(np.zeros((1, 1, 2, 32), np.float32), return_lse=True)
        assert np.allclose(out, 1.5, atol=1e-5)
        assert np.allclose(lse, np.log(n), atol=1e-5)


def test_sink_takes_its_share():
    cache = mpfa.PagedCache(EXACT, q_heads=1, kv_heads=1, head_dim=8)
    cache.append(normal(1, 8, 1, 8), np.ones((1, 8, 1, 8), np.float32))
    out = cache.attend(np.zeros((1, 1, 1, 8), np.float32), sinks=np.float32([1.5]))
    assert np.allclose(out, 0.640939, atol=1e-6)


def test_rows_without_keys_are_zero():
    cache = mpfa.PagedCache(EXACT, q_heads=1, kv_heads=1, head_dim=4)
    cache.append(normal(1, 2, 1, 4), np.float32([1, 3]).reshape(1, 2, 1, 1) * np.ones(4, np.float32))
    out, lse = cache.attend(np.zeros((1, 5, 1, 4), np.float32), return_lse=True)
    assert np.array_equal(out[0, :, 0, 0], [0, 0, 0, 1, 2])
    assert np.array_equal(lse[0, 0, :3], [-np.inf] * 3)
    assert np.allclose(lse[0, 0, 3:], [0, np.log(2)])


@pytest.mark.parametrize("recipe", [EXACT, "mxfp4,centre=none", "nvfp4,centre=none", "fp8"])
def test_cut_into_calls_or_not_the_bits_are_the_same(recipe):
    k, v, q = normal(1, 40, 2, 32), normal(1, 40, 2, 32), normal(1, 1, 4, 32)
    whole = mpfa.PagedCache(recipe, q_heads=4, kv_heads=2, head_dim=32, page_size=16)
    whole.append(k, v)
    expected = whole.attend(q)
    for first in (1, 15, 16, 17):
        cache = mpfa.PagedCache(recipe, q_heads=4, kv_heads=2, head_dim=32, page_size=16)
        cache.append(k[:, :first], v[:, :first])
        cache.append(k[:, first:], v[:, first:])
        assert np.array_equal(cache.attend(q), expected)


def test_mixed_lengths_equal_single_sequences():
    lengths = [3, 0, 17, 64, 65]
    k, v, q = normal(5, 65, 2, 32), normal(5, 65, 2, 32), normal(5, 1, 4, 32)
    batch = mpfa.PagedCache("mxfp4", q_heads=4, kv_heads=2, head_dim=32, batch=5, page_size=16)
    batch.append(k, v, counts=lengths)
    out, lse = batch.attend(q, return_lse=True)
    assert batch.lengths == tuple(lengths)
    for i, n in enumerate(lengths):
        alone = mpfa.PagedCache("mxfp4", q_heads=4, kv_heads=2, head_dim=32, page_size=16)
        alone.append(k[i : i + 1, :n], v[i : i + 1, :n])
        o, s = alone.attend(q[i : i + 1], return_lse=True)
        assert np.array_equal(o[0], out[i]) and np.array_equal(s[0], lse[i])


def test_ragged_queries_equal_dense_ones():
    cache = mpfa.PagedCache("nvfp4", q_heads=4, kv_heads=2, head_dim=32, batch=2)
    cache.append(normal(2, 20, 2, 32), normal(2, 20, 2, 32), counts=[20, 9])
    q = normal(2, 4, 4, 32)
    out, lse = cache.attend(q, return_lse=True)
    ragged, ragged_lse = cache.attend(
        np.concatenate([q[0], q[1, 2:]]), cu_seqlens_q=np.int32([0, 4, 6]), return_lse=True
    )
    assert np.array_equal(ragged[:4], out[0]) and np.array_equal(ragged_lse[:, :4], lse[0])
    assert np.array_equal(ragged[4:], out[1, 2:])


def test_capacity_is_kept_and_reserve_grows():
    cache = mpfa.PagedCache("mxfp4", q_heads=1, kv_heads=1, head_dim=32, capacity=64)
    cache.append(normal(1, 60, 1, 32), normal(1, 60, 1, 32))
    q = normal(1, 1, 1, 32)
    before = cache.attend(q)
    with pytest.raises(mpfa.MpfaError, match="pages"):
        cache.append(normal(1, 5, 1, 32), normal(1, 5, 1, 32))
    assert cache.lengths == (60,) and np.array_equal(cache.attend(q), before)
    cache.reserve(100)
    assert cache.num_pages == 2 and np.array_equal(cache.attend(q), before)
    cache.append(normal(1, 5, 1, 32), normal(1, 5, 1, 32))
    assert cache.lengths == (65,)


def test_pool_without_capacity_grows_by_itself():
    cache = mpfa.PagedCache("fp8", q_heads=1, kv_heads=1, head_dim=16, batch=3, page_size=16)
    for _ in range(10):
        cache.append(normal(2, 33, 1, 16), normal(2, 33, 1, 16), sequences=[2, 0])
    assert cache.lengths == (330, 0, 330)
    cache.free_sequence(2)
    assert cache.lengths == (330, 0, 0) and cache.free_pages == cache.num_pages - 21


def test_pages_can_be_permuted_and_copied():
    cache = mpfa.PagedCache("nvfp4", q_heads=2, kv_heads=1, head_dim=32, page_size=16, capacity=96)
    cache.append(normal(1, 40, 1, 32), normal(1, 40, 1, 32))
    q = normal(1, 1, 2, 32)
    expected = cache.attend(q)
    for source, target in zip(cache.page_table[0], (5, 3, 4)):
        cache.copy_page(source, target)
    cache.set_pages(0, [5, 3, 4])
    assert cache.page_table == [[5, 3, 4]] and np.array_equal(cache.attend(q), expected)


def test_sizes_are_exact():
    sizes = {"mxfp4": 136, "nvfp4": 144, "bf16": 512}
    for recipe, per_head in sizes.items():
        cache = mpfa.PagedCache(recipe, q_heads=32, kv_heads=8, head_dim=128)
        assert cache.bytes_per_token == 8 * per_head
        assert mpfa.bytes_per_token(recipe, q_heads=32, kv_heads=8, head_dim=128) == 8 * per_head
    assert mpfa.bytes_per_token("mpfa_static", q_heads=32, kv_heads=8, head_dim=128) > 8 * (72 + 128)


def test_counters_report_what_the_quantiser_met():
    cache = mpfa.PagedCache("mxfp4_ocp,centre=none", q_heads=1, kv_heads=1, head_dim=32)
    k = np.full((1, 1, 1, 32), 7.0, np.float32)
    v = k.copy()
    v[0, 0, 0, 3] = np.nan
    cache.append(k, v)
    assert cache.counters["nonfinite"] == 1 and cache.counters["saturated"] == 32


def test_centring_repairs_a_large_channel():
    k, v, q = normal(1, 256, 1, 64), normal(1, 256, 1, 64), normal(1, 16, 1, 64)
    k[..., 5] += 300
    out, lse = attention(q, k, v, causal=True)
    plain, centred = mpfa.PagedCache("mxfp4,centre=none", q_heads=1, kv_heads=1, head_dim=64), mpfa.PagedCache(
        "mxfp4", q_heads=1, kv_heads=1, head_dim=64
    )
    for cache in (plain, centred):
        cache.append(k, v)
    assert relative_error(plain.attend(q), out) > 0.4
    approx, approx_lse = centred.attend(q, return_lse=True)
    assert relative_error(approx, out) < 0.2
    assert np.abs(approx_lse - lse).max() < 0.5  # the centred logits, shifted back by tens or hundreds


def test_calibrated_means_are_used():
    k, v, q = normal(1, 50, 2, 32) + 4, normal(1, 50, 2, 32), normal(1, 50, 4, 32) + 1
    cache = mpfa.PagedCache(
        "mpfa_static",
        q_heads=4,
        kv_heads=2,
        head_dim=32,
        k_mean=np.full((2, 32), 4.0, np.float32),
        q_mean=np.full((4, 32), 1.0, np.float32),
    )
    cache.append(k, v)
    assert relative_error(cache.attend(q), attention(q, k, v, causal=True)[0]) < 0.15


def test_threads_share_one_cache():
    cache = mpfa.PagedCache("mxfp4", q_heads=4, kv_heads=2, head_dim=64)
    cache.append(normal(1, 300, 2, 64), normal(1, 300, 2, 64))
    queries = [normal(1, 1, 4, 64) for _ in range(4)]
    expected = [cache.attend(q) for q in queries]
    wrong = []

    def work(i):
        for _ in range(50):
            if not np.array_equal(cache.attend(queries[i]), expected[i]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
