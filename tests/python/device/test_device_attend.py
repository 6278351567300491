"""Attention on the device: the numbers of the host over the same bytes, plans, graphs, streams."""

import pytest
import torch
from device_cases import (
    D,
    HEADS,
    KV_HEADS,
    LENGTHS,
    PAGE,
    CudaInterface,
    Dlpack,
    error,
    filled_cache,
    gaussian,
    query,
)

import mpfa

RECIPES = ["mxfp4", "mxfp4_ocp,centre=none", "nvfp4", "nvfp4_4over6,centre=none", "mxfp4,v_mean=mean"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("rows", [1, 5])
def test_the_numbers_are_those_of_the_host(recipe, rows):
    for d in (64, 128):
        cache = filled_cache(recipe, d=d)
        view = cache.to_device()
        q = query(rows, d=d)
        out, lse = view.attend(q, return_lse=True)
        want, want_lse = cache.attend(q.cpu(), return_lse=True)
        assert out.is_cuda and out.dtype == torch.bfloat16 and out.shape == q.shape
        assert error(out, want) < 4e-3
        seen = torch.isfinite(want_lse)
        assert torch.equal(torch.isfinite(lse.cpu()), seen)
        assert (lse.cpu() - want_lse)[seen].abs().max() < 2e-3


@pytest.mark.parametrize(
    "recipe",
    [
        "mxfp4,phase_switch=on",
        "kv=int8_g64,p=bf16,phase_switch=on,sink=3,recent=20",
        "nvfp4,sink=4,recent=page",
        "kv=int4,p=bf16,v_mean=page",
        "mpfa,p=bf16",
    ],
)
def test_what_a_cache_keeps_beside_its_pages_comes_along(recipe):
    d, lengths = 96 if "int" in recipe else 128, (200, 0, 77)
    shape = (len(lengths), max(lengths), KV_HEADS, d)
    cache = mpfa.PagedCache(recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=d, batch=3, page_size=PAGE)
    prompt = gaussian(3, max(lengths), HEADS, d, seed=4) if "mpfa" in recipe else None
    cache.append(gaussian(*shape, seed=1) + 2, gaussian(*shape, seed=2) + 3, q=prompt, counts=list(lengths))
    q = query(d=d)
    for _ in range(2):  # in the 16-bit phase and after it
        view = cache.to_device(max_tokens=300)
        out, lse = view.attend(q, return_lse=True)
        want, want_lse = cache.attend(q.cpu(), return_lse=True)
        assert error(out, want) < 6e-3
        seen = torch.isfinite(want_lse)
        assert torch.equal(torch.isfinite(lse.cpu()), seen)
        assert (lse.cpu() - want_lse)[seen].abs().max() < 5e-3
        cache.seal()
    kv, slots = torch.zeros(1, KV_HEADS, d, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    with pytest.raises(mpfa.MpfaError, match="belong to sequences and not to slots"):
        view.write_slots(kv, kv, slots)
    with pytest.raises(mpfa.MpfaError, match="save and load"):
        mpfa.PagedCache(recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=d, batch=3, page_size=PAGE).from_device(view)


def test_options_reach_the_kernel():
    cache = filled_cache("nvfp4,centre=none")
    view, q = cache.to_device(), query(4)
    heads = torch.linspace(-1, 2, HEADS)
    every = {"window": (20, -1), "softcap": 5.0, "softmax_scale": 0.2, "causal": False, "sinks": heads}
    every |= {"alibi_slopes": heads.abs(), "mask": torch.rand(4, 208) > 0.5}
    for options in ({name: value} for name, value in every.items()):
        on_device = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        assert error(view.attend(q, **on_device), cache.attend(q.cpu(), **options)) < 4e-3
    bias = torch.randn(3, 1, 4, 208)
    assert error(view.attend(q, mask=bias.cuda()), cache.attend(q.cpu(), mask=bias)) < 4e-3
    assert error(mpfa.attend(q, view, causal=True), cache.attend(q.cpu())) < 4e-3


def test_ragged_rows():
    cache = filled_cache("mxfp4,centre=none")
    q = torch.cat([x[:n] for x, n in zip(query(4), (3, 1, 4))])
    cu = torch.tensor([0, 3, 4, 8])
    out, lse = cache.to_device().attend(q, cu_seqlens_q=cu.cuda(), max_q=4, return_lse=True)
    want, want_lse = cache.attend(q.cpu(), cu_seqlens_q=cu, return_lse=True)
    assert lse.shape == want_lse.shape and error(out, want) < 4e-3


def test_a_graph_reads_lengths_and_page_ids_when_it_is_launched():
    cache = filled_cache("mxfp4,centre=none")
    view, q = cache.to_device(), query()
    out = torch.zeros_like(q)
    plan = view.plan(q_heads=HEADS, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.attend(q, out=out)
    for lengths in (LENGTHS, (90, 0, 64)):
        view.lengths.copy_(torch.tensor(lengths))
        graph.replay()
        short = filled_cache("mxfp4,centre=none")
        for sequence, n in enumerate(lengths):
            short.truncate(sequence, n)
        assert error(out, short.attend(q.cpu())) < 4e-3
    view.page_table[0] = view.page_table[2].clone()
    view.lengths.fill_(77)
    graph.replay()
    assert torch.equal(out[0].isfinite(), torch.ones_like(out[0], dtype=torch.bool))


def test_outputs_are_made_while_a_graph_is_captured_and_writes_are_part_of_it():
    cache = filled_cache("nvfp4,centre=none")
    view, q = cache.to_device(max_tokens=300), query()
    kv = torch.randn(3, KV_HEADS, D, device="cuda", dtype=torch.bfloat16)
    slots = torch.full((3,), -1, device="cuda")
    view.attend(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view.write_slots(kv, kv, slots)
        out = view.attend(q)
    slots.copy_(torch.tensor([p[-1] * PAGE + n % PAGE for p, n in zip(cache.page_table, LENGTHS)]))
    view.lengths += 1
    graph.replay()
    cache.append(kv[:, None].cpu(), kv[:, None].cpu())
    assert error(out, cache.attend(q.cpu())) < 4e-3


def test_two_streams_with_workspaces_of_their_own():
    cache = filled_cache("mxfp4,centre=none", lengths=(3000, 2900, 10))
    view = cache.to_device()
    plan = view.plan(q_heads=HEADS, own_workspace=False)
    queries = [query(), query().roll(1, 0)]
    streams = [torch.cuda.Stream() for _ in queries]
    spaces = [torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda") for _ in queries]
    alone = [plan.attend(q, workspace=space) for q, space in zip(queries, spaces)]
    outs = [[torch.empty_like(q) for _ in range(20)] for q in queries]
    torch.cuda.synchronize()
    for i in range(20):
        for q, out, space, stream in zip(queries, outs, spaces, streams):
            plan.attend(q, out=out[i], workspace=space, stream=stream if i % 2 else stream.cuda_stream)
    torch.cuda.synchronize()
    for out, want in zip(outs, alone):
        assert all(torch.equal(x, want) for x in out)


def test_the_call_neither_waits_nor_allocates():
    view, q = filled_cache("mxfp4,centre=none").to_device(), query()
    plan, out, lse = view.plan(q_heads=HEADS), torch.empty_like(q), torch.empty(3, HEADS, 1, device="cuda")
    kv, slots = torch.randn(1, KV_HEADS, D, device="cuda"), torch.full((1,), -1, device="cuda")
    plan.attend(q, out=out, lse=lse)
    view.write_slots(kv, kv, slots)
    torch.cuda.synchronize()
    free, allocated = torch.cuda.mem_get_info()[0], torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda._sleep(2_000_000_000)  # a second or so
    plan.attend(q, out=out, lse=lse)
    view.write_slots(kv, kv, slots)
    assert not torch.cuda.current_stream().query()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == free


@pytest.mark.parametrize("wrap", [CudaInterface, Dlpack])
def test_arrays_of_other_libraries(wrap):
    cache = filled_cache("mxfp4,centre=none")
    view = cache.to_device()
    pages = [mpfa.Pages(wrap(p.data), wrap(p.scales), format="mxfp4", order="HND") for p in (view.k, view.v)]
    table, lengths = wrap(view.page_table), wrap(view.lengths)
    other = mpfa.DevicePageView(*pages, page_table=table, lengths=lengths, recipe=view.recipe)
    q = query(dtype=torch.float16)
    out = torch.zeros_like(q)
    plan = other.plan(q_heads=HEADS, q_dtype="float16", causal=True)
    wrapped = wrap(q)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        plan.attend(wrapped, out=wrap(out), stream=torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert error(out, cache.attend(q.cpu())) < 4e-3
    assert getattr(wrapped, "streams", [-1]) == [-1]  # no producer was asked to wait
    with pytest.raises(mpfa.MpfaError, match="out is None and q is a"):
        plan.attend(wrapped)
