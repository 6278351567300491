"""The operators trace through torch.compile without a graph break, and their schema is true."""

import shutil

import pytest

torch = pytest.importorskip("torch", reason="operators of torch")

import mpfa  # noqa: E402
from mpfa import torch_ops  # noqa: E402


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = normal(2, 5, 8, 64, seed=1), normal(2, 9, 2, 64, seed=2), normal(2, 9, 2, 32, seed=3)


def layer(q, k, v):
    return torch_ops.attend(q, k, v, recipe="mxfp4", causal=True, softcap=3.0, sinks=torch.zeros(8))


def step(q, k_cache, v_cache, lengths, k, v):
    out, lse = torch_ops.attend_with_kvcache(q, k_cache, v_cache, lengths, k, v, causal=True)
    return out, lse, lengths + 1


BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_attend_compiles_without_graph_breaks(backend):
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for got, expected in zip(compiled(Q, K, V), layer(Q, K, V)):
        assert torch.equal(got, expected)
    expected = mpfa.attend(Q, K, V, recipe="mxfp4", causal=True, softcap=3.0, sinks=torch.zeros(8))
    assert torch.equal(layer(Q, K, V)[0], expected)


def test_decode_step_compiles_and_mutates_the_caches():
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    caches = [(torch.zeros(2, 16, 2, 64), torch.zeros(2, 16, 2, 32)) for _ in range(2)]
    lengths = [torch.zeros(2, dtype=torch.int32)] * 2
    for t in range(3):
        new = Q[:, t : t + 1], K[:, t : t + 1], V[:, t : t + 1]
        eager = step(new[0], *caches[0], lengths[0], *new[1:])
        graph = compiled(new[0], *caches[1], lengths[1], *new[1:])
        lengths = [eager[2], graph[2]]
        assert all(torch.equal(a, b) for a, b in zip(eager, graph))
        assert all(torch.equal(a, b) for a, b in zip(*caches))
    assert torch.equal(caches[1][0][:, :3], K[:, :3])


def test_shape_functions_and_schemas_hold():
    torch.library.opcheck(
        torch.ops.mpfa.attend.default,
        (Q, K, V, "fp8", True, -1, -1, None, 0.0, None, None, None, None, None),
        test_utils=("test_schema", "test_faketensor"),
    )
    cu_q, cu_k = torch.tensor([0, 5, 10]), torch.tensor([0, 9, 18])
    torch.library.opcheck(
        torch.ops.mpfa.attend.default,
        (Q.flatten(0, 1), K.flatten(0, 1), V.flatten(0, 1), "fp8", True, 4, -1, 0.1, 0.0, None, None, None, cu_q, cu_k),
        test_utils=("test_schema", "test_faketensor"),
    )
    new = K[:, :1].contiguous(), V[:, :1].contiguous()
    torch.library.opcheck(
        torch.ops.mpfa.attend_with_kvcache.default,
        (Q, K.clone(), V.clone(), torch.tensor([1, 2]), *new, *[None] * 3, True, True, -1, -1, None, 0.0, None, None),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_bad_input_keeps_its_message():
    with pytest.raises(mpfa.MpfaError, match="mxfp4"):
        torch_ops.attend(Q, K, V, recipe="mxfp5")
