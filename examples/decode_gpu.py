"""Decode on a GPU: nvfp4 pages that torch owns, one CUDA graph that writes the new token and attends to it."""

import torch

import mpfa

PROMPT, STEPS, BATCH, Q_HEADS, KV_HEADS, DIM, PAGE = 512, 32, 4, 32, 8, 128, 64
COLUMNS = -(-(PROMPT + STEPS) // PAGE)  # pages of a sequence
PAGES = BATCH * COLUMNS


def pages() -> mpfa.Pages:
    """Zeroed pages [pages, heads, tokens, bytes] in GPU memory: a byte of codes for two channels, of scale for 16."""
    codes, scales = (torch.zeros(PAGES, KV_HEADS, PAGE, DIM // n, dtype=torch.uint8, device="cuda") for n in (2, 16))
    return mpfa.Pages(codes, scales, format="nvfp4", order="HND")


def decode() -> float:
    """Relative L2 error of all steps against attention over the 16-bit keys and values."""
    torch.manual_seed(1)
    k, v = (torch.randn(BATCH, PROMPT + STEPS, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    queries = torch.randn(STEPS, BATCH, 1, Q_HEADS, DIM, device="cuda", dtype=torch.bfloat16)

    # What an engine owns: pages, a page table, lengths. Here sequence b has every BATCH-th page.
    table = torch.arange(PAGES, dtype=torch.int32, device="cuda").view(COLUMNS, BATCH).t().contiguous()
    lengths = torch.full((BATCH,), PROMPT, dtype=torch.int64, device="cuda")
    view = mpfa.DevicePageView(pages(), pages(), page_table=table, lengths=lengths, recipe="kv=nvfp4,p=bf16")

    def slots(first: int, count: int) -> torch.Tensor:
        at = torch.arange(first, first + count, device="cuda").expand(BATCH, count)
        return (table.gather(1, at // PAGE).long() * PAGE + at % PAGE).flatten()

    view.write_slots(k[:, :PROMPT].flatten(0, 1), v[:, :PROMPT].flatten(0, 1), slots(0, PROMPT))

    # One graph for all steps: lengths, slots and page ids are read from memory when it is launched.
    plan = view.plan(q_heads=Q_HEADS, max_kv=PROMPT + STEPS, causal=True)
    q, out = torch.empty_like(queries[0]), torch.empty_like(queries[0])
    new_k, new_v = torch.empty_like(k[:, 0]), torch.empty_like(v[:, 0])
    slot = slots(PROMPT, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view.write_slots(new_k, new_v, slot)
        plan.attend(q, out=out)

    got, want = [], []
    for step in range(STEPS):
        at = PROMPT + step
        q.copy_(queries[step])
        new_k.copy_(k[:, at])
        new_v.copy_(v[:, at])
        slot.copy_(slots(at, 1))
        lengths.fill_(at + 1)
        graph.replay()
        got.append(out.clone())
        heads_first = (x.transpose(1, 2) for x in (queries[step], k[:, : at + 1], v[:, : at + 1]))
        exact = torch.nn.functional.scaled_dot_product_attention(*heads_first, enable_gqa=True)
        want.append(exact.transpose(1, 2))
    got, want = torch.stack(got).float(), torch.stack(want).float()
    return float((got - want).norm() / want.norm())


if __name__ == "__main__":
    found = mpfa.available("sm90")
    if found:
        print(f"relative L2 error of nvfp4 against bf16: {decode():.3f}")
    else:
        print(f"SKIPPED: {found.reason}")
