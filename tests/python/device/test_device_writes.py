"""Bytes on the device: written by slot, moved there and back."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from device_cases import D, KV_HEADS, LENGTHS, PAGE, error, filled_cache, gaussian

import mpfa


def pages_of(format, **options):
    return [mpfa.Pages.empty(20, PAGE, KV_HEADS, D, format=format, order="HND", **options) for _ in range(2)]


@pytest.mark.parametrize("format", ["mxfp4", "mxfp4_ocp", "mxfp4_ceil", "nvfp4", "nvfp4_4over6"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_slots_get_the_bytes_of_the_host(format, dtype):
    scales = [{"scale": 0.5}, {"scale": np.array([0.3, 2.0], np.float32)}] if format.startswith("nvfp4") else [{}, {}]
    k, v = (pages_of(format, **s)[0] for s in scales)
    means = {"k_mean": gaussian(KV_HEADS, D, seed=8), "v_mean": gaussian(KV_HEADS, D, seed=9)}
    recipe = f"kv={format},p=bf16,centre=static,v_mean=static"
    host = mpfa.PageView(k, v, page_table=np.zeros((1, 1), np.int32), lengths=[0], recipe=recipe, **means)
    view = mpfa.DevicePageView(
        k.to_device(),
        v.to_device(),
        page_table=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
        lengths=torch.zeros(1, dtype=torch.int64, device="cuda"),
        recipe=recipe,
        **{name: x.cuda() for name, x in means.items()},
    )
    tokens = gaussian(150, KV_HEADS, D, dtype=dtype, seed=4), gaussian(150, KV_HEADS, D, dtype=dtype, seed=5)
    tokens[0][4, 0, 5], tokens[1][7] = float("nan"), 1e-7
    slots = torch.tensor([-1 if i % 7 == 3 else i * 11 % (20 * PAGE) for i in range(150)])
    met = host.write_slots(*tokens, slots)
    counters = torch.zeros(3, dtype=torch.int64, device="cuda")
    view.write_slots(*(x.cuda() for x in tokens), slots.cuda(), counters=counters)
    assert counters.tolist() == [met["nonfinite"], met["saturated"], met["flushed"]] and met["nonfinite"] == 1
    for on_device, on_host in zip((view.k, view.v), (k, v)):
        back = on_device.to_host()
        assert np.array_equal(np.asarray(back.data), on_host.data)
        assert np.array_equal(np.asarray(back.scales), on_host.scales)


def test_keys_and_queries_are_rotated_in_the_same_launch():
    angles = torch.outer(torch.arange(64.0), 10000.0 ** -(torch.arange(0, D, 2) / D))
    cos, sin, positions = angles.cos(), angles.sin(), torch.arange(40) + 7
    k, v, q = (gaussian(1, 40, heads, D, seed=heads) for heads in (KV_HEADS, KV_HEADS, 8))
    sizes = {"q_heads": 8, "kv_heads": KV_HEADS, "head_dim": D, "page_size": PAGE, "capacity": 64}
    view = mpfa.PagedCache("mxfp4,centre=none", **sizes).to_device(max_tokens=64)
    cache = mpfa.PagedCache("mxfp4,centre=none", **sizes)
    turned = cache.append(k, v, rope=mpfa.Rope(cos, sin), positions=positions[None], rotate_q=q)
    want = cache.to_device()
    slots = torch.tensor([cache.page_table[0][t // PAGE] * PAGE + t % PAGE for t in range(40)])
    rope, at = mpfa.Rope(cos.cuda(), sin.cuda()), positions.cuda()
    got = view.write_slots(k[0].cuda(), v[0].cuda(), slots.cuda(), rope=rope, positions=at, rotate_q=q[0].cuda())
    assert torch.equal(got.cpu(), turned[0])
    for x, y in ((view.k, want.k), (view.v, want.v)):
        assert torch.equal(x.data, y.data) and torch.equal(x.scales, y.scales)
    with pytest.raises(mpfa.MpfaError, match="rope.cos is in host memory"):
        view.write_slots(k[0].cuda(), v[0].cuda(), slots.cuda(), rope=mpfa.Rope(cos, sin), positions=at)
    with pytest.raises(mpfa.MpfaError, match="rope.positions is null"):
        view.write_slots(k[0].cuda(), v[0].cuda(), slots.cuda(), rope=rope)


@pytest.mark.parametrize("recipe", ["mxfp4,centre=none", "nvfp4,centre=none"])
def test_a_cache_goes_there_and_back_bit_for_bit(recipe):
    cache = filled_cache(recipe)
    view = cache.to_device()
    assert view.k.data.is_cuda and view.lengths.tolist() == list(LENGTHS)
    empty = mpfa.PagedCache(recipe, q_heads=8, kv_heads=KV_HEADS, head_dim=D, batch=3, page_size=PAGE)
    empty.from_device(view)
    assert empty.lengths == cache.lengths
    assert all(empty.save(b) == cache.save(b) for b in range(3))
    with pytest.raises(mpfa.MpfaError, match="all of them empty"):
        empty.from_device(view)


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "int8_g64", "fp8_e4m3_static"])
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_pages_are_converted_to_the_bytes_of_the_host(format, order):
    shape = (6, PAGE, KV_HEADS, D) if order == "NHD" else (6, KV_HEADS, PAGE, D)
    both = gaussian(6, 2, *shape[1:], dtype=torch.bfloat16, seed=6)  # K and V interleaved
    both[2, 1] *= 1e5
    here, there = (mpfa.Pages(x[:, 1], order=order) for x in (both.clone(), both.cuda()))
    mean, scale = gaussian(KV_HEADS, D, seed=7), [0.5, 2.0] if "static" in format else None
    counters = torch.zeros(3, dtype=torch.int64, device="cuda")
    for ids in ([4, 0], torch.tensor([2, 99], dtype=torch.int32)):  # of the host, of the device
        is_list = isinstance(ids, list)
        want, met = mpfa.convert_pages(here, format, ids if is_list else [2], mean=mean, scale=scale)
        ids = ids if is_list else ids.cuda()
        got, empty = mpfa.convert_pages(there, format, ids, mean=mean.cuda(), scale=scale, counters=counters)
        assert empty == {} and got.tag == want.tag and got.on_device
        assert torch.equal(got.data.cpu().view(torch.int16), want.data.view(torch.int16))
    assert counters.tolist()[1] >= met["saturated"]
    everything = mpfa.Pages(both.cuda()[:, 0], order=order)
    all_here = mpfa.Pages(both[:, 0], order=order)
    mpfa.convert_pages(everything, format, scale=scale, stream=torch.cuda.current_stream())
    mpfa.convert_pages(all_here, format, scale=scale)
    assert torch.equal(everything.data.cpu().view(torch.int16), all_here.data.view(torch.int16))


def test_attention_over_pages_of_which_the_old_ones_are_converted():
    heads, table, packed = 8, torch.tensor([[3, 1, 5, 2], [0, 4, 7, 6]], dtype=torch.int32), 2
    x = gaussian(2, 8, PAGE, KV_HEADS, D, dtype=torch.bfloat16, seed=8)
    mean = gaussian(KV_HEADS, D, seed=9)
    q, lengths = gaussian(2, 1, heads, D, dtype=torch.bfloat16, seed=10), torch.tensor([4 * PAGE, 3 * PAGE + 3])

    def attend(x, q, table, lengths, mean, view, **merge):
        old = table[:, :packed].contiguous()
        k, v = (mpfa.convert_pages(pages, "mxfp4", old.flatten(), mean=mean)[0] for pages in x)
        full = torch.full_like(lengths, packed * PAGE)
        recipe = "kv=mxfp4,p=bf16,centre=static,v_mean=static"
        before = view(k, v, page_table=old, lengths=full, recipe=recipe, k_mean=mean, v_mean=mean)
        after = view(
            mpfa.Pages(x[0]), mpfa.Pages(x[1]), page_table=table[:, packed:].contiguous(), lengths=lengths - full
        )
        a, b = before.attend(q, causal=False, return_lse=True), after.attend(q, causal=True, return_lse=True)
        return mpfa.merge_states(*a, *b, **merge)

    want, want_lse = attend(x.clone(), q, table, lengths, mean, mpfa.PageView)
    on_device = (x.cuda(), q.cuda(), table.cuda(), lengths.cuda(), mean.cuda(), mpfa.DevicePageView)
    out, lse = attend(*on_device, stream=torch.cuda.current_stream())
    assert out.dtype == torch.float32 and error(out, want) < 5e-3 and (lse.cpu() - want_lse).abs().max() < 1e-3
    into = torch.empty_like(on_device[1])
    again, _ = attend(x.cuda(), *on_device[1:], out=into)
    assert again is into and error(again, out) < 3e-3


def test_joined_pages_of_an_engine():
    cache = filled_cache("nvfp4,centre=none")
    bytes_of_page = 2 * KV_HEADS * PAGE * (D // 2 + D // 16)
    buffer = np.zeros((cache.num_pages, bytes_of_page), np.uint8)
    sizes = {"page_size": PAGE, "kv_heads": KV_HEADS, "head_dim": D, "k_format": "nvfp4", "order": "HND"}
    host = mpfa.joined_pages(buffer, **sizes)
    for sequence, pages in enumerate(cache.page_table):
        cache.export_pages(sequence, *host, pages)
    table = cache.to_device()
    k, v = mpfa.joined_pages(torch.from_numpy(buffer).cuda(), **sizes)
    q = gaussian(3, 1, 8, D, dtype=torch.bfloat16).cuda()
    view = mpfa.DevicePageView(k, v, page_table=table.page_table, lengths=table.lengths)
    assert torch.equal(view.attend(q), table.attend(q))
    assert np.array_equal(np.asarray(k.to_host().data), buffer)


WITHOUT_TORCH = """
import sys
import numpy as np
import mpfa
from mpfa.device_arrays import to_device
rng = np.random.default_rng(1)
cache = mpfa.PagedCache("mxfp4,centre=none", q_heads=4, kv_heads=2, head_dim=64)
cache.append(rng.standard_normal((1, 90, 2, 64), np.float32), rng.standard_normal((1, 90, 2, 64), np.float32))
view = cache.to_device()
q = rng.standard_normal((1, 1, 4, 64), np.float32).astype(np.float16)
out = to_device(np.zeros_like(q))
view.attend(to_device(q), out=out)
want = cache.attend(q)
print(np.abs(out.to_host().astype(np.float32) - want).max() < 2e-3)
back = mpfa.PagedCache("mxfp4,centre=none", q_heads=4, kv_heads=2, head_dim=64)
back.from_device(view)
print(back.save(0) == cache.save(0), "torch" in sys.modules)
"""


def test_a_process_without_torch():
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["True", "True", "False"], run.stderr
