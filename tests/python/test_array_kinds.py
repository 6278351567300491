"""Same kind out as in: NumPy, torch, unknown DLPack producers; read-only, strided, foreign memory."""

import ml_dtypes
import numpy as np
import pytest

import mpfa

RNG = np.random.default_rng(19)
Q, K, V = (RNG.standard_normal(shape, dtype=np.float32) for shape in ((1, 3, 4, 32), (1, 9, 2, 32), (1, 9, 2, 32)))


class Producer:
    """An array of a library nobody knows: the protocol and nothing else."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class Library:
    """A namespace in the sense of the array API."""

    @staticmethod
    def from_dlpack(x):
        return Array(np.from_dlpack(x))


class Array(Producer):
    def __array_namespace__(self):
        return Library


def test_numpy_in_numpy_out():
    out, lse = mpfa.attend(Q, K, V, return_lse=True)
    assert type(out) is type(lse) is np.ndarray and out.dtype == lse.dtype == np.float32


def test_numpy_bfloat16():
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (Q, K, V))
    out = mpfa.attend(q, k, v, recipe="bf16")
    assert out.dtype == ml_dtypes.bfloat16
    wide = mpfa.attend(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32), recipe="bf16")
    assert np.array_equal(out, wide.astype(ml_dtypes.bfloat16))
    assert np.array_equal(mpfa.quantize(k, "mxfp4").data, mpfa.quantize(k.astype(np.float32), "mxfp4").data)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_in_torch_out(dtype):
    torch = pytest.importorskip("torch", reason="torch arrays")
    q, k, v = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (Q, K, V))
    out, lse = mpfa.attend(q, k, v, return_lse=True)
    assert isinstance(out, torch.Tensor) and out.dtype == q.dtype and lse.dtype == torch.float32
    packed = mpfa.quantize(q, "fp8_e4m3")
    assert isinstance(packed.data, torch.Tensor) and packed.data.dtype == torch.uint8
    assert isinstance(mpfa.dequantize(packed), torch.Tensor)
    if dtype == "float32":
        assert np.array_equal(out.numpy(), mpfa.attend(Q, K, V))
    cache = mpfa.PagedCache("fp8", q_heads=4, kv_heads=2, head_dim=32)
    cache.append(k, v)
    assert cache.attend(q).dtype == q.dtype


def test_an_unknown_library_gets_its_own_arrays_back():
    expected, expected_lse = mpfa.attend(Q, K, V, return_lse=True)
    out, lse = mpfa.attend(Array(Q), Array(K), Array(V), return_lse=True)
    assert isinstance(out, Array) and isinstance(lse, Array)
    assert np.array_equal(out.x, expected) and np.array_equal(lse.x, expected_lse)
    assert isinstance(mpfa.quantize(Array(Q[0]), "mxfp4").data, Array)


def test_a_library_without_a_way_back_gets_numpy():
    out = mpfa.attend(Producer(Q), Producer(K), Producer(V))
    assert type(out) is np.ndarray and np.array_equal(out, mpfa.attend(Q, K, V))


def test_kinds_may_be_mixed():
    torch = pytest.importorskip("torch", reason="torch arrays")
    out = mpfa.attend(Q, torch.from_numpy(K), Producer(V), sinks=torch.zeros(4), alibi_slopes=np.zeros(4))
    assert type(out) is np.ndarray


def test_read_only_inputs_are_fine():
    q, k, v = Q.copy(), K.copy(), V.copy()
    for x in (q, k, v):
        x.flags.writeable = False
    assert np.array_equal(mpfa.attend(q, k, v), mpfa.attend(Q, K, V))
    with pytest.raises(mpfa.MpfaError, match="k_cache"):
        mpfa.flash_attn_with_kvcache(Q, k, v, K[:, :1], V[:, :1], cache_seqlens=2)


def test_gradients_are_refused_not_dropped():
    torch = pytest.importorskip("torch", reason="torch arrays")
    q, k, v = (torch.from_numpy(x).clone() for x in (Q, K, V))
    k.requires_grad_()
    with pytest.raises(mpfa.MpfaError, match="k requires a gradient"):
        mpfa.attend(q, k, v)
    with torch.no_grad():
        assert np.array_equal(mpfa.attend(q, torch.nn.Parameter(k), v).numpy(), mpfa.attend(Q, K, V))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("name", ["meta", "sparse", "fake"])
def test_torch_tensors_without_memory_are_refused(name):
    torch = pytest.importorskip("torch", reason="torch arrays")
    k = torch.from_numpy(K)
    if name == "meta":
        k = k.to("meta")
    elif name == "sparse":
        k = k.to_sparse()
    else:
        from torch._subclasses.fake_tensor import FakeTensorMode

        k = FakeTensorMode().from_tensor(k)
    with pytest.raises(mpfa.MpfaError, match="^k "):
        mpfa.attend(torch.from_numpy(Q), k, torch.from_numpy(V))
