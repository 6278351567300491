"""A host cache and the same bytes on the device."""

import torch

import mpfa

HEADS, KV_HEADS, D, PAGE = 8, 2, 128, 16
LENGTHS = (200, 1, 77)


def gaussian(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def filled_cache(recipe, d=D, lengths=LENGTHS, page_size=PAGE, **calibrated):
    """A cache whose sequences have these lengths, the keys with a bias."""
    cache = mpfa.PagedCache(
        recipe, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=d, batch=len(lengths), page_size=page_size, **calibrated
    )
    shape = (len(lengths), max(lengths), KV_HEADS, d)
    cache.append(gaussian(*shape, seed=1) + 2, gaussian(*shape, seed=2), counts=list(lengths))
    return cache


def query(rows=1, d=D, batch=len(LENGTHS), dtype=torch.bfloat16):
    return gaussian(batch, rows, HEADS, d, dtype=dtype, seed=3).cuda()


def error(x, y):
    """Relative L2."""
    x, y = x.double().cpu(), y.double().cpu()
    return float((x - y).norm() / y.norm())


class CudaInterface:
    """A tensor of which only __cuda_array_interface__ is known."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    __cuda_array_interface__ = None


class Dlpack:
    """A tensor of which only DLPack is known; records the stream it is asked for."""

    def __init__(self, tensor):
        self._tensor, self.streams = tensor, []

    def __dlpack__(self, *, stream=None, **_):
        self.streams.append(stream)
        return self._tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()
