"""What the host can see of a bad call is refused before anything is enqueued, with what to do."""

import pytest
import torch
from device_cases import D, HEADS, KV_HEADS, filled_cache, query

import mpfa


@pytest.fixture(scope="module")
def view():
    return filled_cache("mxfp4,centre=none").to_device()


@pytest.fixture(scope="module")
def plan(view):
    return view.plan(q_heads=HEADS, max_q=2)


def refused(text):
    return pytest.raises(mpfa.MpfaError, match=text)


def test_queries_and_outputs(plan):
    q = query()
    with refused("q is in host memory"):
        plan.attend(q.cpu(), out=q)
    with refused("out is in host memory"):
        plan.attend(q, out=torch.empty(q.shape, dtype=q.dtype, pin_memory=True))
    with refused("q is f16, the plan was made for bf16"):
        plan.attend(q.half(), out=q)
    with refused("q is float64|q is f64"):
        plan.attend(q.double(), out=q)
    with refused("max_q is 2"):
        plan.attend(query(3))
    with refused("mask.data was given although mask is not set"):
        plan.attend(q, mask=torch.ones(1, 208, dtype=torch.bool, device="cuda"))
    with refused("q has shape"):
        plan.attend(q[:, :, :4].contiguous())
    with refused("stride 2 along the head dim"):
        plan.attend(query(d=2 * D)[..., ::2], out=q)
    with refused("multiples of 16 bytes"):
        plan.attend(torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")[1:].view(q.shape), out=q)
    with refused("rows overlap"):
        plan.attend(q, out=torch.empty(D, dtype=q.dtype, device="cuda").expand(q.shape))
    with refused("lse is"):
        plan.attend(q, lse=torch.empty(3, HEADS, 1, device="cuda", dtype=torch.float64))
    with refused("sinks was given although sinks is not set"):
        plan.attend(q, sinks=torch.zeros(HEADS, device="cuda"))
    with refused("stream is a str"):
        plan.attend(q, stream="0")


def test_workspaces(view, plan):
    q = query()
    bare = view.plan(q_heads=HEADS, own_workspace=False)
    with refused(f"has 0 bytes, the plan needs {bare.workspace_bytes}"):
        bare.attend(q)
    space = torch.empty(bare.workspace_bytes + 8, dtype=torch.uint8, device="cuda")
    bare.attend(q, workspace=space[: bare.workspace_bytes])
    with refused("the plan needs"):
        bare.attend(q, workspace=space[: bare.workspace_bytes - 1])
    with refused("8 bytes past a multiple of 64"):
        bare.attend(q, workspace=space[8:])
    with refused("workspace is in host memory"):
        bare.attend(q, workspace=space.cpu())


def test_views(view):
    table, lengths = view.page_table, view.lengths
    for wrong, text in (
        ({"page_table": table.cpu()}, "page_table is in host memory"),
        ({"page_table": table.long()}, "page_table is int64.*int32"),
        ({"page_table": table[:1].expand(3, -1)}, r"strides \[0, 1\]; int32 .* with contiguous rows"),
        ({"lengths": lengths.int()}, "lengths is int32.*int64"),
        ({"lengths": lengths[:2]}, r"\[3\] is needed"),
        ({"recipe": "mxfp4,sink=4"}, "keeps state that pages and means of K and V do not hold"),
        ({"recipe": "kv=mxfp4,v_mean=page"}, "keeps state"),
        ({"k_mean": torch.zeros(KV_HEADS, D)}, "k_mean is in host memory"),
        ({"k_mean": torch.zeros(2, KV_HEADS, D, device="cuda")}, "means of 2 sequences, the page table has 3"),
        ({"v_mean": torch.zeros(KV_HEADS, D // 2, device="cuda")}, "v_mean is float32 of shape"),
    ):
        with refused(text):
            mpfa.DevicePageView(view.k, view.v, **{"page_table": table, "lengths": lengths, **wrong})
    with refused("k is in host memory"):
        mpfa.DevicePageView(view.k.to_host(), view.v, page_table=table, lengths=lengths)
    with refused("scales in host memory"):
        mpfa.Pages(view.k.data, view.k.scales.cpu(), format="mxfp4", order="HND")
    with refused("in device memory and this call works on the CPU"):
        mpfa.PageView(view.k, view.v, page_table=[[0]], lengths=[1])
    with refused("another device.*DevicePageView"):
        filled_cache("mxfp4").attend(query())


def test_plans(view):
    for wrong, text in (
        ({"q_dtype": "float32"}, "q is f32; convert it to bf16 or f16"),
        ({"max_q": 17}, "max_q is 17"),
        ({"alibi": True}, "alibi_slopes is null although alibi is set"),
        ({"mask": "boolean"}, "mask.data is null although mask is set"),
        ({"batch": 4}, r"the plan is for 4 sequences of .* the page table is \[3, 13\]"),
        ({"max_kv": 13 * 16 + 1}, "max_kv 209, which take 14 pages each"),
        ({"device": "cpu"}, "no GPU"),
        ({"device": "sm100"}, "sm100"),
    ):
        with refused(text):
            view.plan(**{"q_heads": HEADS, **wrong}).attend(query())


def test_writes(view):
    kv, slots = torch.zeros(2, KV_HEADS, D, device="cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")
    for call, text in (
        ((kv.cpu(), kv, slots), "k is in host memory"),
        ((kv, kv.half(), slots), "v is f16"),
        ((kv, kv, slots.int()), "slot_mapping is int32"),
        ((kv, kv, slots[:1]), r"int64 \[2\] is needed"),
        ((kv[:, :, ::2], kv, slots), "k is f32"),
        ((kv.expand(2, KV_HEADS, D), kv, slots.cpu()), "slot_mapping is in host memory"),
    ):
        with refused(text):
            view.write_slots(*call)
    means = torch.zeros(3, KV_HEADS, D, device="cuda")
    each = mpfa.DevicePageView(view.k, view.v, page_table=view.page_table, lengths=view.lengths, k_mean=means)
    with refused("k_mean differs between sequences"):
        each.write_slots(kv, kv, slots)


def test_conversions():
    x = torch.zeros(3, 16, KV_HEADS, D, dtype=torch.bfloat16, device="cuda")
    for options, text in (
        ({"page_ids": torch.zeros(2, dtype=torch.int64, device="cuda")}, "page_ids is int64"),
        ({"page_ids": [-1]}, "-1 is not a page id"),
        ({"mean": torch.zeros(KV_HEADS, D)}, "mean is in host memory"),
        ({"counters": torch.zeros(3, device="cuda")}, "counters is float32|counters is f32"),
        ({"stream": "0"}, "stream is a str"),
    ):
        with refused(text):
            mpfa.convert_pages(x, "mxfp4", **options)
    with refused("pages hold mxfp4|mxfp4"):
        mpfa.convert_pages(mpfa.convert_pages(x, "mxfp4")[0], "nvfp4")
    with refused("lloyd4"):
        mpfa.convert_pages(x, "lloyd4")
    with refused("counters and stream are for pages in device memory"):
        mpfa.convert_pages(x.cpu(), "mxfp4", stream=0)


def test_merges():
    o, lse = query(), torch.zeros(3, HEADS, 1, device="cuda")
    for options, text in (
        ({"out": o.cpu()}, "out is in host memory"),
        ({"lse": lse.double()}, "lse is float64|lse is f64"),
        ({"out": o[:, :, :4].contiguous()}, r"out is \[3, 1, 4, 128\] and a"),
    ):
        with refused(text):
            mpfa.merge_states(o, lse, o, lse, **options)
    with refused("lse_b is in host memory"):
        mpfa.merge_states(o, lse, o, lse.cpu())
    with refused("are for results in device memory"):
        mpfa.merge_states(o.cpu(), lse.cpu(), o.cpu(), lse.cpu(), out=o)


def test_memory_of_the_host_behind_a_cuda_interface(plan):
    class Claims:
        def __init__(self, x):
            self.__cuda_array_interface__ = {**x.__array_interface__, "stream": None}

        __cuda_array_interface__ = None

    q = query(dtype=torch.float16).cpu().numpy()
    half = filled_cache("mxfp4,centre=none").to_device().plan(q_heads=HEADS, q_dtype="float16")
    with refused("q is not memory of the current device, 0, but memory of the host"):
        half.attend(Claims(q), out=query(dtype=torch.float16))
