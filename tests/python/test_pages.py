"""Pages, page tables and lengths of the caller: read in place, written by slot, copied between layouts."""

import gc

import ml_dtypes
import numpy as np
import pytest
import torch
from oracle import EXACT

import mpfa

RNG = np.random.default_rng(7)
PAGE, KV_HEADS, HEADS, D = 16, 2, 4, 64
LENGTHS = [37, 0, 16]
TABLE = np.array([[5, 2, 7], [-9, 99, -9], [2, -1, 3]], np.int32)  # page 2 is shared; the rest is never read
INDPTR, INDICES, LAST = [0, 3, 3, 4], [5, 2, 7, 2], [5, 0, 16]
PACKED = ["nvfp4", "mxfp4", "fp8_e4m3", "int8_g32", "int4", "lloyd4", "int4_asym"]


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape, dtype=np.float32).astype(dtype)


def dense(pool, b):
    """[1, length, kv_heads, d] of sequence b of an NHD pool."""
    rows = pool[TABLE[b][TABLE[b] >= 0]].reshape(1, -1, KV_HEADS, D)
    return rows[:, : LENGTHS[b]]


def hnd(x):
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3))


def table(view_of=LENGTHS):
    return {"page_table": TABLE, "lengths": view_of}


@pytest.fixture
def pools():
    return normal(8, PAGE, KV_HEADS, D), normal(8, PAGE, KV_HEADS, D)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_wide_pages_are_read_where_they_lie(pools, dtype):
    k, v = (x.astype(dtype) for x in pools)
    q = normal(3, 2, HEADS, D)
    both = np.stack([k, v], axis=1)  # [num_pages, 2, page_size, kv_heads, d]
    padded = np.zeros((8, PAGE + 3, KV_HEADS + 1, D + 8), dtype)
    padded[:, :PAGE, :KV_HEADS, :D] = k
    views = [
        mpfa.PageView(k, v, **table()),
        mpfa.PageView(k, v, indptr=INDPTR, indices=np.array(INDICES, np.int32), last_page_len=LAST),
        mpfa.PageView(hnd(k), hnd(v), order="HND", page_table=TABLE.astype(np.int64), lengths=np.array(LENGTHS)),
        mpfa.PageView(both[:, 0], both[:, 1], **table()),
        mpfa.PageView(mpfa.Pages(padded[:, :PAGE, :KV_HEADS, :D]), mpfa.Pages(hnd(v), order="HND"), **table()),
        mpfa.PageView(k[::-1], v[::-1], page_table=7 - TABLE, lengths=LENGTHS),
    ]
    for view in views:
        out, lse = view.attend(q, return_lse=True)
        again = mpfa.attend(q, view, causal=True)
        assert np.array_equal(out, again)
        fa, fa_lse = mpfa.flash_attn_with_kvcache(
            q, view, cache_seqlens=LENGTHS, causal=True, return_softmax_lse=True
        )
        assert np.array_equal(fa, out) and np.array_equal(fa_lse, lse)
        for b in (0, 2):
            rows = [dense(x.astype(np.float32), b) for x in (k, v)]
            want = mpfa.attend(q[b : b + 1], *rows, recipe=EXACT, causal=True)
            np.testing.assert_allclose(out[b : b + 1], want, atol=3e-6)
        assert not out[1].any() and np.all(lse[1] == -np.inf)
    if dtype is np.float32:
        pools_torch = [torch.from_numpy(x) for x in (k, v)]
        clean = torch.from_numpy(np.where((TABLE < 0) | (TABLE > 7), 0, TABLE))
        transposed = [torch.from_numpy(hnd(x)).transpose(1, 2) for x in (k, v)]
        for order, caches in (("NHD", pools_torch), ("HND", transposed)):
            got = mpfa.flash_attn_with_kvcache(
                torch.from_numpy(q), *caches, cache_seqlens=LENGTHS, page_table=clean, causal=True
            )
            assert np.array_equal(got.numpy(), views[0].attend(q)), order


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_written_slots_read_as_a_cache_that_appended(pools, name, order):
    recipe = f"q=f32,k={name},v={name},p=f32"
    k, v = (mpfa.Pages.empty(8, PAGE, KV_HEADS, D, format=name, order=order) for _ in range(2))
    view = mpfa.PageView(k, v, **table())
    slots = [page * PAGE + t for page in (5, 2, 7) for t in range(PAGE)][: LENGTHS[0]]
    met = {"saturated": 0, "flushed": 0, "nonfinite": 0}
    for first in range(0, LENGTHS[0], 10):
        part = slots[first : first + 10]
        rows = slice(first, first + len(part))
        counters = view.write_slots(dense(pools[0], 0)[0, rows], dense(pools[1], 0)[0, rows], np.array(part, np.int32))
        met = {name: n + counters[name] for name, n in met.items()}
    cache = mpfa.PagedCache(recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=D, page_size=PAGE)
    cache.append(dense(pools[0], 0), dense(pools[1], 0))
    assert met == cache.counters
    q = normal(1, 1, HEADS, D)
    view.set_table(page_table=TABLE[:1], lengths=LENGTHS[:1])
    assert np.array_equal(view.attend(q), cache.attend(q))
    # The same bytes elsewhere, taken over by a cache and given back.
    other = mpfa.PagedCache(recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=D, page_size=PAGE)
    other.import_pages(0, k, v, [5, 2, 7], LENGTHS[0])
    assert other.lengths == (37,) and np.array_equal(other.attend(q), cache.attend(q))
    assert other.save(0) == cache.save(0)
    k2, v2 = (mpfa.Pages.empty(4, PAGE, KV_HEADS, D, format=name) for _ in range(2))
    other.export_pages(0, k2, v2, [3, 0, 1])
    again = mpfa.PageView(k2, v2, page_table=np.array([[3, 0, 1]]), lengths=[37])
    assert np.array_equal(again.attend(q), cache.attend(q))


def test_static_recipes_read_and_write_with_their_means(pools):
    means = {"k_mean": normal(KV_HEADS, D), "v_mean": normal(KV_HEADS, D)}
    recipe = "mxfp4,centre=static,v_mean=static,rotate=qk"
    k, v = (mpfa.Pages.empty(8, PAGE, KV_HEADS, D, format="mxfp4") for _ in range(2))
    view = mpfa.PageView(k, v, **table([37, 0, 0]), recipe=recipe, **means)
    slots = [page * PAGE + t for page in (5, 2, 7) for t in range(PAGE)][:37]
    view.write_slots(dense(pools[0], 0)[0], dense(pools[1], 0)[0], slots)
    cache = mpfa.PagedCache(recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=D, page_size=PAGE, **means)
    cache.append(dense(pools[0], 0), dense(pools[1], 0))
    q = normal(3, 1, HEADS, D)
    out, lse = view.attend(q, return_lse=True)
    want, want_lse = cache.attend(q[:1], return_lse=True)
    assert np.array_equal(out[:1], want) and np.array_equal(lse[:1], want_lse)


def test_calibrated_scales_of_one_number_or_one_per_head(pools):
    scale = np.array([0.5, 2.0], np.float32)
    for format, given in (("nvfp4", 0.25), ("nvfp4", scale), ("fp8_e4m3_static", scale / 64)):
        k, v = (mpfa.Pages.empty(8, PAGE, KV_HEADS, D, format=format, scale=given) for _ in range(2))
        view = mpfa.PageView(k, v, page_table=np.array([[1, 3, 6]]), lengths=[37])
        slots = [page * PAGE + t for page in (1, 3, 6) for t in range(PAGE)][:37]
        view.write_slots(dense(pools[0], 0)[0], dense(pools[1], 0)[0], slots)
        heads = np.broadcast_to(np.asarray(given, np.float32), 2).copy()
        cache = mpfa.PagedCache(
            f"q=f32,k={format},v={format},p=f32",
            **{"q_heads": HEADS, "kv_heads": KV_HEADS, "head_dim": D, "k_scale": heads, "v_scale": heads},
        )
        cache.append(dense(pools[0], 0), dense(pools[1], 0))
        q = normal(1, 1, HEADS, D)
        np.testing.assert_array_equal(view.attend(q), cache.attend(q))


def test_buffers_stay_alive(pools):
    q = normal(3, 1, HEADS, D)
    view = mpfa.PageView(pools[0].copy(), pools[1].copy(), page_table=TABLE.copy(), lengths=LENGTHS)
    want = mpfa.PageView(*pools, **table()).attend(q)
    gc.collect()
    garbage = [np.full_like(pools[0], np.nan) for _ in range(4)]
    assert np.array_equal(view.attend(q), want) and len(garbage) == 4


def test_inputs_are_not_modified_and_read_only_arrays_are_read(pools):
    k, v = pools
    before = k.copy(), v.copy(), TABLE.copy()
    for x in pools:
        x.flags.writeable = False
    view = mpfa.PageView(k, v, **table())
    view.attend(normal(3, 1, HEADS, D))
    assert all(np.array_equal(a, b) for a, b in zip(before, (k, v, TABLE)))
    with pytest.raises(mpfa.MpfaError, match="read-only"):
        view.write_slots(k[0], v[0], np.arange(PAGE))


def test_what_does_not_fit_is_refused_with_a_reason(pools):
    k, v = pools
    q = normal(3, 1, HEADS, D)
    packed = mpfa.Pages.empty(8, PAGE, KV_HEADS, D, format="nvfp4")
    other = mpfa.Pages.empty(8, PAGE, KV_HEADS, D, format="mxfp4")
    view = mpfa.PageView(k, v, **table())
    cases = [
        (lambda: mpfa.PageView(k, v), "page_table and lengths, or indptr"),
        (lambda: mpfa.PageView(k, v, **table(), indptr=INDPTR), "not both"),
        (lambda: mpfa.PageView(k, v, page_table=TABLE, lengths=[1, 2]), "lengths has 2 entries, page_table 3 rows"),
        (lambda: mpfa.PageView(k, v, page_table=TABLE), "lengths is None"),
        (lambda: mpfa.PageView(k, v, page_table=TABLE[0], lengths=[1]), "page_table is int32"),
        (lambda: mpfa.PageView(k, v, indptr=[0, 2], indices=[1], last_page_len=[3]), "indices has 1 entries"),
        (lambda: mpfa.PageView(k, v, indptr=[0, 1], indices=[8], last_page_len=[3]), r"indices\[0\] is 8"),
        (lambda: mpfa.PageView(k, v, indptr=[0, 1], indices=[1], last_page_len=[0]), "must be in 1..16"),
        (lambda: mpfa.PageView(k, v, indptr=[0, 1], indices=[1]), "last_page_len is None"),
        (lambda: mpfa.PageView(k, v, indptr=[0, 2**31], indices=[1], last_page_len=[1]), "no int32"),
        (lambda: mpfa.PageView(k, v[:, :8], **table()), "must be equal"),
        (lambda: mpfa.PageView(k[0], v, **table()), "data has shape"),
        (lambda: mpfa.PageView(k, packed, **table(), recipe="mxfp4"), "static or none"),
        (lambda: mpfa.PageView(k, v, **table(), k_mean=normal(KV_HEADS, D)), "does not use it"),
        (lambda: mpfa.PageView(k, packed, **table(), recipe="mxfp4,centre=none").attend(q), "the cache holds k as f32"),
        (lambda: mpfa.PageView(k, packed, **table(), recipe="mxfp4,centre=none,sink=4"), "append to a PagedCache"),
        (lambda: view.attend(q[:2]), "q has 2 sequences, the page table 3"),
        (lambda: view.attend(q[:, :, :3]), "not a multiple"),
        (lambda: view.attend(q[..., :32]), r"64\] is needed"),
        (lambda: mpfa.PageView(k, v, **table([49, 0, 0])).attend(q), "4 entries; the page table has 3"),
        (lambda: mpfa.PageView(k, v, **table([-1, 0, 0])).attend(q), r"lengths\[0\] is -1"),
        (lambda: mpfa.PageView(k, v, **table([37, 1, 0])).attend(q), r"page_table\[1, 0\] is"),
        (lambda: mpfa.attend(q, view, v), "v has no meaning beside a PageView"),
        (lambda: mpfa.attend(q, view, recipe="fp8"), "recipe has no meaning"),
        (lambda: mpfa.flash_attn_with_kvcache(q, view, k=q, v=q), "use PageView.write_slots"),
        (lambda: mpfa.flash_attn_with_kvcache(q, view, cache_seqlens=[1, 2, 3]), "the PageView holds"),
        (lambda: mpfa.flash_attn_with_kvcache(q, view, block_table=TABLE), "no meaning for a PageView"),
        (lambda: view.write_slots(k[0], v[0], np.arange(PAGE) + 8 * PAGE - 3), "have slots 0..127"),
        (lambda: view.write_slots(k[0], v[0], np.zeros(PAGE, np.int32)), "slot 0 is given twice"),
        (lambda: view.write_slots(k[0], v[0], np.arange(3)), "k has shape"),
        (lambda: view.write_slots(k[0], v[0], None), "slot_mapping is None"),
        (lambda: mpfa.Pages(packed.data, packed.scales), "name its storage format"),
        (lambda: mpfa.Pages(packed.data, format="nvfp4"), "scales is None"),
        (lambda: mpfa.Pages(packed.data, packed.scales[:, :, :1], format="nvfp4"), "scales has shape"),
        (lambda: mpfa.Pages(k, packed.scales, format="f32"), "leave them out"),
        (lambda: mpfa.Pages(k.transpose(0, 1, 3, 2)), "stride"),
        (lambda: mpfa.Pages(packed.data, packed.scales, format="nvfp4", head_dim=48), "rows of 32 bytes"),
        (lambda: mpfa.Pages(packed.data, packed.scales, format="nvfp4", order="DHN"), "page order 'DHN'"),
        (lambda: mpfa.Pages(packed.data, packed.scales, format="nvfp4", layout="vllm"), "page_swizzle4"),
        (lambda: mpfa.Pages(packed.data, packed.scales, format="nvfp4@keys"), "transposed"),
        (lambda: mpfa.Pages(packed.data, format="fp8_e4m3_static"), "stores no scale"),
        (lambda: mpfa.copy_pages(packed, other), "the source is 'nvfp4"),
        (lambda: mpfa.copy_pages(packed, k), "mpfa.Pages are needed"),
        (lambda: mpfa.copy_pages(packed, packed, [0, 8], [1, 2]), r"from_ids\[1\] is 8"),
        (lambda: mpfa.Pages(k, format=3), "str"),
        (lambda: mpfa.Pages(k, format="F32"), "format 'F32' is not known"),
        (lambda: mpfa.Pages.empty(8, 6, 1, 64, format="nvfp4", layout="page_swizzle4"), "multiples of 4"),
    ]  # fmt: skip
    for call, reason in cases:
        with pytest.raises(mpfa.MpfaError, match=reason):
            call()
    shared = np.broadcast_to(k[:, :, :1], k.shape)
    assert mpfa.PageView(shared, v, **table()).attend(q).shape == q.shape
    with pytest.raises(mpfa.MpfaError, match="overlap|read-only|cannot be written"):
        mpfa.PageView(shared, v, **table()).write_slots(k[0], v[0], np.arange(PAGE))
    loose = torch.from_numpy(k)[:, :, :1].expand(8, PAGE, KV_HEADS, D)
    with pytest.raises(mpfa.MpfaError, match="rows of data overlap"):
        mpfa.PageView(loose, v, **table()).write_slots(k[0], v[0], np.arange(PAGE))


@pytest.mark.parametrize(
    ("dtype", "format", "needed"),
    [
        ("bfloat16", "fp16", "float16 or uint8"),
        ("float16", "bf16", "bfloat16 or uint8"),
        ("float32", "bf16", "bfloat16 or uint8"),
        ("float8_e4m3fnuz", "fp8_e4m3", "float8_e4m3fn or uint8"),
        ("float8_e5m2", "fp8_e4m3", "float8_e4m3fn or uint8"),
        ("float8_e5m2fnuz", "mxfp8_e5m2_ceil", "float8_e5m2 or uint8"),
        ("float8_e4m3fn", "int8", "uint8"),
    ],
)
def test_values_of_another_type_are_not_read_as_codes(dtype, format, needed):
    shape = (2, PAGE, KV_HEADS, D)
    for data in (np.zeros(shape, np.dtype(dtype)), torch.zeros(shape).to(getattr(torch, dtype))):
        with pytest.raises(mpfa.MpfaError, match=f"data is {dtype}, .*format {format} stores there; {needed} is"):
            mpfa.Pages(data, format=format)


def test_scales_are_of_the_type_of_the_format():
    data = np.zeros((2, PAGE, KV_HEADS, D // 2), np.uint8)
    for format, blocks, right, wrong in (
        ("nvfp4", D // 16, "float8_e4m3fn", "float8_e8m0fnu"),
        ("nvfp4", D // 16, "float8_e4m3fn", "float8_e4m3fnuz"),
        ("mxfp4", D // 32, "float8_e8m0fnu", "float8_e4m3fn"),
        ("int4_g32", D // 32, "float16", "bfloat16"),
    ):
        shape = (2, PAGE, KV_HEADS, blocks)
        assert mpfa.Pages(data, np.zeros(shape, np.dtype(right)), format=format).format == format
        with pytest.raises(mpfa.MpfaError, match=f"scales is {wrong}, .*; {right} or uint8 is needed"):
            mpfa.Pages(data, np.zeros(shape, np.dtype(wrong)), format=format)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8_e4m3", "int4_asym", "fp8_e4m3_static", "nvfp4@keys"])
@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_converted_pages_hold_the_bytes_of_quantize(name, order, dtype):
    shape = (PAGE, KV_HEADS) if order == "NHD" else (KV_HEADS, PAGE)
    memory = normal(8, 2, *shape, D, dtype=dtype)
    before = memory.copy()
    scale = np.float32([0.01, 0.02]) if "static" in name else None
    pages, counters = mpfa.convert_pages(mpfa.Pages(memory[:, 1], order=order), name, [5, 2], scale=scale)
    assert pages.format == name and (pages.num_pages, pages.page_size, pages.head_dim) == (8, PAGE, D)
    assert counters["nonfinite"] == 0
    untouched = np.ones(memory.shape[:2], bool)
    untouched[[5, 2], 1] = False
    assert np.array_equal(memory[untouched].view(np.uint16), before[untouched].view(np.uint16))
    for page in (5, 2):
        x = before[page, 1] if order == "HND" else np.ascontiguousarray(before[page, 1].swapaxes(0, 1))
        want = mpfa.quantize(x, name, scale=scale)
        bytes_ = memory[page, 1].reshape(-1).view(np.uint8)
        codes = want.data.reshape(-1)
        first = -(-codes.size // 16) * 16
        assert np.array_equal(bytes_[: codes.size], codes)
        assert np.array_equal(bytes_[first : first + want.scales.size], want.scales.reshape(-1))


@pytest.mark.parametrize("recipe", ["kv=nvfp4,p=bf16", "k=mxfp4,v=fp8_e4m3,p=bf16", "nvfp4,centre=static"])
def test_attention_over_converted_pages_is_that_of_a_cache(recipe):
    memory = normal(8, 2, PAGE, KV_HEADS, D, dtype=ml_dtypes.bfloat16)
    mean = {"k_mean": normal(KV_HEADS, D)} if "static" in recipe else {}
    cache = mpfa.PagedCache(recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=D, batch=3, page_size=PAGE, **mean)
    for b in (0, 2):
        cache.append(dense(memory[:, 0], b), dense(memory[:, 1], b), sequences=[b])
    q = normal(3, 2, HEADS, D)
    want = cache.attend(q, return_lse=True)
    k_format, v_format = {"k=": ("mxfp4", "fp8_e4m3")}.get(recipe[:2], ("nvfp4", "nvfp4"))
    k, _ = mpfa.convert_pages(memory[:, 0], k_format, [5, 2, 7], mean=mean.get("k_mean"))
    v, _ = mpfa.convert_pages(memory[:, 1], v_format, [5, 2, 7])
    view = mpfa.PageView(k, v, recipe=recipe, **mean, **table())
    got = view.attend(q, return_lse=True)
    assert all(np.array_equal(a, b) for a, b in zip(got, want))
    # Decode goes on in the unused slots of the last page.
    new = normal(1, KV_HEADS, D)
    view.write_slots(new, new, np.array([7 * PAGE + 5]))
    view.set_table(page_table=TABLE, lengths=[38, 0, 16])
    cache.append(new[None], new[None], sequences=[0])
    assert np.array_equal(view.attend(q), cache.attend(q))


def test_converted_torch_pages_share_their_memory():
    memory = torch.randn(2, 4, PAGE, KV_HEADS, D, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    before = memory.clone()
    mpfa.convert_pages(memory[1], "nvfp4", [1])
    assert torch.equal(memory[0], before[0]) and torch.equal(memory[1, [0, 2, 3]], before[1, [0, 2, 3]])
    want = mpfa.quantize(before[1, 1].transpose(0, 1).contiguous(), "nvfp4")
    codes = memory[1, 1].reshape(-1).view(torch.uint8)[: want.data.numel()]
    assert torch.equal(codes, want.data.reshape(-1))


def test_refused_conversions_change_nothing():
    memory = normal(4, 2, PAGE, KV_HEADS, D, dtype=ml_dtypes.bfloat16)
    before = memory.copy()
    frozen = memory[:, 0]
    frozen.flags.writeable = False
    for pages, name, ids, message in [
        (memory[:, 0], "bf16", [0], "not smaller"),
        (memory[:, 0], "fp8_e4m3_static", [0], "pass global"),
        (memory[:, 0], "mxfp4", [0, 0], "given twice"),
        (memory[:, 0], "mxfp4", [4], r"page ids are in 0\.\.3"),
        (memory[:, 0, :, :, :32], "mxfp4", [0], "must be contiguous"),
        (memory[:, 0, :12], "nvfp4@keys", [0], "page_size 12"),
        (np.zeros((1, 2, 2, 8), np.float32), "mxfp4", [0], "bf16 or fp16"),
        (memory, "mxfp4", [0], "dimensions"),
        (frozen, "mxfp4", [0], "read-only|writable"),
    ]:
        with pytest.raises(mpfa.MpfaError, match=message):
            mpfa.convert_pages(pages, name, ids)
    assert np.array_equal(memory.view(np.uint16), before.view(np.uint16))
