"""flash_attn_* against torch's scaled_dot_product_attention in float32, and the contracts of the caches."""

import pytest

torch = pytest.importorskip("torch", reason="compares with torch")
import numpy as np  # noqa: E402
from oracle import attention, relative_error  # noqa: E402

import mpfa  # noqa: E402

ROWS, KEYS, HEADS, KV_HEADS, DIM = 5, 23, 8, 2, 64


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(batch=2, rows=ROWS, keys=KEYS):
    return (
        normal(batch, rows, HEADS, DIM, seed=1),
        normal(batch, keys, KV_HEADS, DIM, seed=2),
        normal(batch, keys, KV_HEADS, DIM, seed=3),
    )


def sdpa(q, k, v, causal=False, window=(-1, -1), scale=None):
    """torch's attention of [b, s, h, d] tensors with a bottom-right mask."""
    position = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1])[None, :]
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        seen &= key <= position
    if window[0] >= 0:
        seen &= key >= position - window[0]
    if window[1] >= 0:
        seen &= key <= position + window[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def close(a, b, tolerance=2e-6):
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (4, 0), (3, 2)])
def test_func_equals_sdpa(causal, window):
    q, k, v = qkv()
    out = mpfa.flash_attn_func(q, k, v, causal=causal, window_size=window)
    assert close(out, sdpa(q, k, v, causal, window))


def test_func_takes_scale_softcap_slopes_and_aliases():
    q, k, v = qkv()
    slopes, sinks = torch.linspace(0, 1, HEADS), torch.linspace(-1, 1, HEADS)
    out, lse = mpfa.flash_attn_func(
        q, k, v, 0.0, 0.2, True, (-1, -1), 5.0, slopes, s_aux=sinks, return_softmax_lse=True, num_splits=3
    )
    ref, ref_lse = attention(q, k, v, scale=0.2, causal=True, softcap=5.0, alibi=slopes, sinks=sinks)
    assert relative_error(out, ref) < 2e-6 and relative_error(lse, ref_lse) < 2e-6
    same = mpfa.flash_attn_func(
        q, k, v, sm_scale=0.2, causal=True, logits_soft_cap=5.0, alibi_slopes=slopes, learnable_sink=sinks
    )
    assert torch.equal(same, out)
    triple = mpfa.flash_attn_func(q, k, v, return_attn_probs=True)
    assert len(triple) == 3 and triple[2] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_func_keeps_dtypes_and_takes_recipes(dtype):
    q, k, v = (x.to(dtype) for x in qkv())
    ref = sdpa(q.float(), k.float(), v.float())
    for recipe, error in ((None, 5e-3), ("bf16", 1e-2), ("fp8", 8e-2), ("mxfp4", 0.3)):
        out = mpfa.flash_attn_func(q, k, v, recipe=recipe)
        assert out.dtype == dtype and relative_error(out.float(), ref) < error


def test_varlen_equals_sdpa_of_each_sequence():
    lengths_q, lengths_k = [5, 1, 0, 7], [9, 30, 4, 3]
    cu_q = torch.tensor([0, 5, 6, 6, 13], dtype=torch.int32)
    cu_k = torch.tensor([0, 9, 39, 43, 46], dtype=torch.int32)
    q = normal(13, HEADS, DIM)
    k, v = normal(46, KV_HEADS, DIM, seed=1), normal(46, KV_HEADS, DIM, seed=2)
    out = mpfa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, max(lengths_q), max(lengths_k), causal=True)
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        assert close(out[rows], sdpa(q[None, rows], k[None, keys], v[None, keys], causal=True)[0])
    assert (out[6:10] == 0).all()  # 7 rows over 3 keys: the first four see none


def paged(x, page, order):
    """x [b, s, h, d] cut into pages that lie in the given order of a pool, and their table."""
    b, s = x.shape[:2]
    columns = -(-s // page)
    pool = torch.full((b * columns + 1, page, *x.shape[2:]), float("nan"))
    table = torch.tensor(order, dtype=torch.int32).reshape(b, columns)
    for i in range(b):
        for c in range(columns):
            rows = x[i, c * page : (c + 1) * page]
            pool[table[i, c], : len(rows)] = rows
    return pool, table


def test_paged_caches_are_read_through_the_table():
    q, k, v = qkv()
    order = [5, 0, 2, 6, 1, 3]
    (k_pool, table), (v_pool, _) = paged(k, 8, order), paged(v, 8, order)
    expected = sdpa(q, k, v, causal=True)
    out = mpfa.flash_attn_with_kvcache(q, k_pool, v_pool, cache_seqlens=KEYS, block_table=table, causal=True)
    assert close(out, expected)
    again = mpfa.flash_attn_with_kvcache(q, k_pool, v_pool, cache_seqlens=KEYS, page_table=table, causal=True)
    assert torch.equal(again, out)
    cu_q, cu_k = [0, ROWS, 2 * ROWS], [0, KEYS, 2 * KEYS]
    flat = mpfa.flash_attn_varlen_func(
        q.flatten(0, 1), k_pool, v_pool, cu_q, cu_k, ROWS, KEYS, causal=True, block_table=table
    )
    assert close(flat.reshape(out.shape), expected)


def test_kvcache_appends_in_place_and_nothing_else_changes():
    q, k, v = qkv()
    k_cache, v_cache = torch.full((4, 40, KV_HEADS, DIM), torch.nan), torch.full((4, 40, KV_HEADS, DIM), torch.nan)
    rows, before = [3, 1], [10, 0]
    for i, (row, n) in enumerate(zip(rows, before)):
        k_cache[row, :n], v_cache[row, :n] = k[i, :n], v[i, :n]
    new_k, new_v = (torch.stack([x[0, 10:15], x[1, :5]]) for x in (k, v))
    wanted_k, wanted_v = k_cache.clone(), v_cache.clone()
    for i, (row, n) in enumerate(zip(rows, before)):
        wanted_k[row, n : n + 5], wanted_v[row, n : n + 5] = new_k[i], new_v[i]
    out, lse = mpfa.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        new_k,
        new_v,
        cache_seqlens=torch.tensor(before, dtype=torch.int32),
        cache_batch_idx=torch.tensor(rows, dtype=torch.int32),
        causal=True,
        return_softmax_lse=True,
    )
    assert torch.equal(k_cache.nan_to_num(7), wanted_k.nan_to_num(7))
    assert torch.equal(v_cache.nan_to_num(7), wanted_v.nan_to_num(7))
    for i, n in enumerate((15, 5)):
        keys = slice(0, n)
        assert close(out[i : i + 1], sdpa(q[i : i + 1], k[i : i + 1, keys], v[i : i + 1, keys], causal=True))
    assert lse.shape == (2, HEADS, ROWS)


def rotate(x, cos, sin, first, interleaved):
    """Rotary embedding from the definition, float64."""
    half = cos.shape[1]
    x = x.double().clone()
    c = cos[first : first + x.shape[1]].double()[None, :, None]
    s = sin[first : first + x.shape[1]].double()[None, :, None]
    low = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    high = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b = x[..., low].clone(), x[..., high].clone()
    x[..., low], x[..., high] = a * c - b * s, a * s + b * c
    return x.float()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotary_dim", [DIM, 32])
def test_kvcache_rotates_new_keys_and_queries(interleaved, rotary_dim):
    q, k, v = qkv(batch=1)
    angles = torch.arange(64)[:, None] * 10000 ** (-torch.arange(rotary_dim // 2) / (rotary_dim // 2))
    cos, sin = angles.cos(), angles.sin()
    k_cache, v_cache = torch.zeros(1, 30, KV_HEADS, DIM), torch.zeros(1, 30, KV_HEADS, DIM)
    k_cache[:, :18], v_cache[:, :18] = k[:, :18], v[:, :18]
    out = mpfa.flash_attn_with_kvcache(
        q, k_cache, v_cache, k[:, 18:], v[:, 18:], cos, sin, 18, causal=True, rotary_interleaved=interleaved
    )
    turned = rotate(k[:, 18:], cos, sin, 18, interleaved)
    assert close(k_cache[:, 18:23], turned)
    expected = sdpa(rotate(q, cos, sin, 18, interleaved), k_cache[:, :23], v_cache[:, :23], causal=True)
    assert close(out, expected, 5e-6)


def test_kvcache_dtypes_may_differ():
    q, k, v = qkv()
    for q_dtype, cache_dtype in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.float16)):
        q_, k_, v_ = q.to(q_dtype), k.to(cache_dtype), v.to(cache_dtype)
        out = mpfa.flash_attn_with_kvcache(q_, k_, v_)
        assert out.dtype == q_dtype
        assert relative_error(out.float(), sdpa(q_.float(), k_.float(), v_.float())) < 5e-3


def test_kvcache_may_be_a_packed_cache():
    q, k, v = qkv()
    packed = mpfa.PagedCache("nvfp4", q_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, batch=2)
    packed.append(k[:, :18], v[:, :18])
    other = mpfa.PagedCache("nvfp4", q_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, batch=2)
    other.append(k[:, :18], v[:, :18])
    other.append(k[:, 18:], v[:, 18:])
    out = mpfa.flash_attn_with_kvcache(q, packed, None, k[:, 18:], v[:, 18:], causal=True)
    assert packed.lengths == (KEYS, KEYS) and torch.equal(out, other.attend(q))
    with pytest.raises(mpfa.MpfaError, match="cache_seqlens"):
        mpfa.flash_attn_with_kvcache(q, packed, cache_seqlens=3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"dropout_p": 0.1}, "dropout_p"),
        ({"qv": np.zeros(1)}, "qv"),
        ({"block_size": 3}, "block_size"),
        ({"softmax_scale": 0.0}, "softmax_scale"),
    ],
)
def test_func_refuses_what_it_cannot_do(arguments, message):
    with pytest.raises(mpfa.MpfaError, match=message):
        mpfa.flash_attn_func(*qkv(), **arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"cache_leftpad": torch.zeros(2)}, "cache_leftpad"),
        ({"k": torch.zeros(2, 1, KV_HEADS, DIM)}, "both or neither"),
        ({"cache_seqlens": 24}, "holds 23"),
        ({"cache_seqlens": torch.tensor([1])}, "2 sequences"),
        ({"cache_seqlens": torch.tensor([1.0, 2.0])}, "int32 or int64"),
        ({"cache_batch_idx": [0, 2]}, "cache_batch_idx"),
        ({"block_table": torch.tensor([[0], [2]], dtype=torch.int32)}, "page"),
        ({"block_table": torch.tensor([[0], [1]])}, "int32"),
        ({"rotary_cos": torch.zeros(9, 32)}, "belong together"),
        ({"recipe": "mxfp4"}, "PagedCache"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_kvcache_refuses_and_changes_nothing(arguments, message):
    q, k, v = qkv()
    copies = k.clone(), v.clone()
    with pytest.raises(mpfa.MpfaError, match=message):
        mpfa.flash_attn_with_kvcache(q, k, v, **arguments)
    assert torch.equal(k, copies[0]) and torch.equal(v, copies[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q[0], k, v),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(torch.tensor(1.0), k, v),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q, k, torch.tensor(1.0)),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q, k, None),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q, k[:, :0], v[:, :0]),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q, k[:, :, :0], v[:, :, :0]),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q, k.double(), v.double()),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q, k.transpose(1, 3), v.transpose(1, 3)),
        lambda q, k, v: mpfa.flash_attn_with_kvcache(q[0], k, v, cu_seqlens_q=3),
        lambda q, k, v: mpfa.flash_attn_varlen_func(q[0], k[0], v[0], 5, 5),
        lambda q, k, v: mpfa.flash_attn_varlen_func(q[0], k[0], v[0], None, [0, KEYS]),
        lambda q, k, v: mpfa.flash_attn_varlen_func(q[0], k, v, [0, ROWS], [0.5, KEYS], block_table=k),
        lambda q, k, v: mpfa.flash_attn_func(q, k, torch.tensor(1.0)),
        lambda q, k, v: mpfa.flash_attn_func(q, k.int(), v),
        lambda q, k, v: mpfa.flash_attn_func(q, k.to("meta"), v),
    ],
)
def test_odd_shapes_and_types_are_refused(call):
    with pytest.raises(mpfa.MpfaError):
        call(*qkv())


def test_a_refused_append_writes_nothing():
    q, k, v = qkv()
    k_cache, v_cache = torch.zeros(2, 25, KV_HEADS, DIM), torch.zeros(2, 25, KV_HEADS, DIM)
    for arguments in (
        {"cache_seqlens": 3},
        {"cache_seqlens": 0, "softcap": -1.0},
        {"cache_seqlens": 0, "cache_batch_idx": [1, 1]},
        {"cache_seqlens": None},
    ):
        with pytest.raises(mpfa.MpfaError):
            mpfa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **arguments)
        assert not k_cache.any() and not v_cache.any()
