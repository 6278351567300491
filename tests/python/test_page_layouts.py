"""Pages in the layouts of FlashInfer, vLLM and ggml: read in place where strides allow, else copied bit for bit."""

import ml_dtypes
import numpy as np
import pytest
import torch

import mpfa

RNG = np.random.default_rng(8)
PAGE, KV_HEADS, HEADS, D = 16, 2, 4, 64
TABLE = {"page_table": np.array([[5, 2, 7], [-9, 99, -9], [2, -1, 3]]), "lengths": [37, 0, 16]}


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.fixture
def pools():
    return normal(8, PAGE, KV_HEADS, D), normal(8, PAGE, KV_HEADS, D)


def test_fp8_rows_with_their_scale_inline(pools):
    """[d codes | fp32 scale | padding] per token and head, as FlashInfer writes fp8 with token scales."""
    slots = np.zeros((8, PAGE, KV_HEADS, D + 16), np.uint8)
    k = mpfa.Pages(slots[..., :D], slots[..., D : D + 4], format="fp8_e4m3")
    v = mpfa.Pages.empty(8, PAGE, KV_HEADS, D, format="fp8_e4m3")
    view = mpfa.PageView(k, v, page_table=np.array([[4]]), lengths=[1])
    view.write_slots(pools[0][0, :1], pools[1][0, :1], [4 * PAGE])
    amax = np.abs(pools[0][0, 0]).max(axis=-1)
    inline = slots[4, 0, :, D : D + 4].copy().view(np.float32)[:, 0]
    np.testing.assert_allclose(inline, amax / 448, rtol=1e-6)
    assert not slots[4, 0, :, D + 4 :].any() and not slots[4, 1].any()
    codes = slots[4, 0, :, :D].copy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_allclose(codes * inline[:, None], pools[0][0, 0], atol=amax.max() / 14)
    # float8 arrays of torch and NumPy count as their bytes.
    of_torch = torch.from_numpy(slots[..., :D].copy()).view(torch.float8_e4m3fn)
    for typed in (of_torch, slots[..., :D].view(ml_dtypes.float8_e4m3fn)):
        scales = np.ascontiguousarray(slots[..., D : D + 4]).view(np.float32)[..., 0]
        again = mpfa.PageView(mpfa.Pages(typed, scales, format="fp8_e4m3"), v, page_table=np.array([[4]]), lengths=[1])
        q = normal(1, 1, HEADS, D)
        assert np.array_equal(again.attend(q), view.attend(q))


@pytest.mark.parametrize("v_layout", ["linear", "page_swizzle4"])
def test_packed_vllm_pages(pools, v_layout):
    d = D
    page_bytes = 2 * PAGE * KV_HEADS * (d // 2 + d // 16)
    buffer = np.full((8, page_bytes + 24), 0xEE, np.uint8)
    k, v = mpfa.joined_pages(
        buffer, page_size=PAGE, kv_heads=KV_HEADS, head_dim=d, k_format="nvfp4", v_layout=v_layout, order="HND",
        k_scale=0.5, v_scale=2.0,
    )  # fmt: skip
    ours = [mpfa.Pages.empty(8, PAGE, KV_HEADS, d, format="nvfp4", scale=s) for s in (0.5, 2.0)]
    view = mpfa.PageView(*ours, **TABLE)
    for page in range(8):
        view.write_slots(pools[0][page], pools[1][page], np.arange(page * PAGE, (page + 1) * PAGE))
    for mine, theirs in zip(ours, (k, v)):
        mpfa.copy_pages(mine, theirs)
    assert (buffer[:, page_bytes:] == 0xEE).all()
    kd = PAGE * KV_HEADS * d // 2
    ks = PAGE * KV_HEADS * d // 16
    assert np.array_equal(buffer[3, :kd].reshape(KV_HEADS, PAGE, -1), ours[0].data[3].transpose(1, 0, 2))
    assert np.array_equal(buffer[3, kd : kd + ks].reshape(KV_HEADS, PAGE, -1), ours[0].scales[3].transpose(1, 0, 2))
    v_scales = buffer[3, 2 * kd + ks : 2 * (kd + ks)].reshape(KV_HEADS, PAGE, -1)
    want = ours[1].scales[3].transpose(1, 0, 2)
    if v_layout == "page_swizzle4":  # [T/4, 4, 4, S/4] with the 4 tokens moved last, as vLLM describes it
        want = want.reshape(KV_HEADS, PAGE // 4, 4, 4, d // 64).transpose(0, 1, 3, 4, 2).reshape(KV_HEADS, PAGE, -1)
        with pytest.raises(mpfa.MpfaError, match="only linear pages are read in place"):
            mpfa.PageView(k, v, **TABLE)
        with pytest.raises(mpfa.MpfaError, match="the tag is 'nvfp4 page_swizzle4"):
            ours[1].check_tag(v.tag)
    else:
        q = normal(3, 1, HEADS, D)
        assert np.array_equal(mpfa.PageView(k, v, **TABLE).attend(q), view.attend(q))
        v.check_tag(ours[1].tag)
    assert np.array_equal(v_scales, want)
    back = mpfa.Pages.empty(8, PAGE, KV_HEADS, d, format="nvfp4")
    mpfa.copy_pages(v, back)
    assert np.array_equal(back.data, ours[1].data) and np.array_equal(back.scales, ours[1].scales)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "int8_g32", "int4_g32"])
@pytest.mark.parametrize("layout", ["ggml", "tile_128x4", "page_swizzle4"])
def test_layouts_of_others_and_back(pools, name, layout):
    ours = mpfa.Pages.empty(8, PAGE, KV_HEADS, 256, format=name)
    other = mpfa.Pages.empty(8, PAGE, KV_HEADS, 256, format=name)
    view = mpfa.PageView(ours, other, **TABLE)
    view.write_slots(*(normal(8 * PAGE, KV_HEADS, 256),) * 2, np.arange(8 * PAGE))
    with pytest.raises(mpfa.MpfaError, match="share bytes; give each memory of its own, or .* PageView with v=None"):
        mpfa.PageView(ours, ours, **TABLE).write_slots(*(normal(1, KV_HEADS, 256),) * 2, [0])
    if layout != "ggml" and name.startswith("int"):
        with pytest.raises(mpfa.MpfaError, match="one-byte scales"):
            mpfa.Pages.empty(8, PAGE, KV_HEADS, 256, format=name, layout=layout)
        return
    theirs = mpfa.Pages.empty(8, PAGE, KV_HEADS, 256, format=name, layout=layout, order="HND")
    back = mpfa.Pages.empty(8, PAGE, KV_HEADS, 256, format=name)
    mpfa.copy_pages(ours, theirs)
    mpfa.copy_pages(theirs, back, [3, 1], [0, 7])
    assert np.array_equal(back.data[0], ours.data[3]) and np.array_equal(back.scales[7], ours.scales[1])
    assert not back.data[1:7].any()
