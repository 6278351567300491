"""Two cards: a call works on the current one, and what belongs to the other is refused with its name."""

import pytest
import torch
from device_cases import D, HEADS, KV_HEADS, error, filled_cache, query

import mpfa

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two CUDA devices"
)


def refused(text):
    return pytest.raises(mpfa.MpfaError, match=text)


def test_the_current_device_does_the_work():
    cache = filled_cache("nvfp4,centre=mean")
    q, outs = query(3), []
    for device in (0, 1, 0, 1):
        with torch.cuda.device(device):
            view = cache.to_device(f"cuda:{device}")
            out, lse = view.attend(q.to(f"cuda:{device}"), return_lse=True)
            assert out.device.index == lse.device.index == device
            outs.append(out.cpu())
    assert error(outs[0], cache.attend(q.cpu())) < 4e-3
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_graphs_and_writes_on_the_second_device():
    cache = filled_cache("mxfp4,centre=none")
    with torch.cuda.device(1):
        view, q = cache.to_device("cuda:1", max_tokens=300), query().to("cuda:1")
        kv = torch.randn(3, KV_HEADS, D, device="cuda", dtype=torch.bfloat16)
        slots = torch.full((3,), -1, device="cuda")
        plan = view.plan(q_heads=HEADS)
        out = plan.attend(q)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            view.write_slots(kv, kv, slots)
            plan.attend(q, out=out)
        page = view.k.page_size
        slots.copy_(torch.tensor([p[-1] * page + n % page for p, n in zip(cache.page_table, cache.lengths)]))
        view.lengths += 1
        graph.replay()
        torch.cuda.synchronize()
    cache.append(kv[:, None].cpu(), kv[:, None].cpu())
    assert error(out, cache.attend(q.cpu())) < 4e-3


def test_memory_of_another_device_is_refused():
    view, q = filled_cache("mxfp4,centre=none").to_device(), query()
    plan = view.plan(q_heads=HEADS, max_q=2)
    with refused("q is not memory of the current device, 0, but of device 1; copy it there or make its"):
        plan.attend(q.to("cuda:1"), out=q, stream=torch.cuda.current_stream())
    with torch.cuda.device(1), refused("is not memory of the current device, 1, but of device 0"):
        plan.attend(q, out=q)
    there = torch.zeros(2, 16, KV_HEADS, D, dtype=torch.bfloat16, device="cuda:1")
    with refused("pages is not memory of the current device, 0, but of device 1"):
        mpfa.convert_pages(there, "mxfp4", stream=torch.cuda.current_stream())


def test_a_stream_of_another_device_is_refused():
    view, q = filled_cache("mxfp4,centre=none").to_device(), query()
    want = view.attend(q)
    kv, slots = torch.randn(1, KV_HEADS, D, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    other = torch.cuda.Stream(1)
    for call in (lambda: view.attend(q, stream=other), lambda: view.write_slots(kv, kv, slots, stream=other)):
        with refused("stream is not one of the current device, 0, but of device 1"):
            call()
    torch.cuda.synchronize(1)
    assert torch.equal(view.attend(q), want)
