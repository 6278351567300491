"""ggml's fused attention through its C API, as a peer of decode and of prompts of up to LONGEST_PROMPT tokens."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from cases import Case, chunks, copies_for, queries
from timing import Contestant

F32 = 0
TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2, "mxfp4": 39, "nvfp4": 40}  # values of enum ggml_type
F16 = TYPES["f16"]
GRAPH_BYTES = 2**20  # tensor headers and one graph
LONGEST_PROMPT = 2048  # a call over 16k tokens takes minutes where K and V are quantised


class InitParams(ctypes.Structure):
    """struct ggml_init_params, passed by value."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """The few functions that are needed, of libggml-base.so and libggml-cpu.so in `folder`.

    Raises FileNotFoundError when the folder lacks them.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        paths = [folder / name for name in ("libggml-base.so", "libggml-cpu.so")]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(
                    f"--ggml {folder}: there is no {path.name}; "
                    "name the folder of a ggml built with BUILD_SHARED_LIBS=ON"
                )
        self._base, self._cpu = (ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in paths)
        pointer, int64, float_ = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        base, cpu = self._base, self._cpu
        self.init = self._function(base.ggml_init, pointer, InitParams)
        self.free = self._function(base.ggml_free, None, pointer)
        self.tensor = self._function(base.ggml_new_tensor_4d, pointer, pointer, ctypes.c_int, *[int64] * 4)
        self.data = self._function(base.ggml_get_data, pointer, pointer)
        self.row_size = self._function(base.ggml_row_size, ctypes.c_size_t, ctypes.c_int, int64)
        self.quantize = self._function(
            base.ggml_quantize_chunk, ctypes.c_size_t, ctypes.c_int, pointer, pointer, int64, int64, int64, pointer
        )
        self.attention = self._function(base.ggml_flash_attn_ext, pointer, *[pointer] * 5, float_, float_, float_)
        self.graph = self._function(base.ggml_new_graph, pointer, pointer)
        self.expand = self._function(base.ggml_build_forward_expand, None, pointer, pointer)
        self.compute = self._function(base.ggml_backend_graph_compute, ctypes.c_int, pointer, pointer)
        self._function(cpu.ggml_cpu_init, None)()
        self.backend = self._function(cpu.ggml_backend_cpu_init, pointer)()
        self._function(cpu.ggml_backend_cpu_set_n_threads, None, pointer, ctypes.c_int)(self.backend, threads)

    def version(self) -> str:
        """Version and commit that the library was built from."""
        functions = (self._base.ggml_version, self._base.ggml_commit)
        names = (self._function(function, ctypes.c_char_p)() for function in functions)
        return " ".join(name.decode() for name in names)

    @staticmethod
    def _function(function, result, *arguments):
        function.restype = result
        function.argtypes = arguments
        return function


class State:
    """Memory, graph and result of one attention over filled K and V of a type."""

    def __init__(self, ggml: Ggml, case: Case, kind: int) -> None:
        self._ggml = ggml
        q = queries(case).transpose(1, 2).contiguous()
        operand_bytes = case.b * case.hkv * case.kv * ggml.row_size(kind, case.d)
        mask_bytes = 2 * case.q_len * case.kv
        self._context = ggml.init(InitParams(2 * operand_bytes + 4 * q.nbytes + mask_bytes + GRAPH_BYTES, None, False))
        q_tensor = ggml.tensor(self._context, F32, case.d, case.q_len, case.hq, case.b)
        ctypes.memmove(ggml.data(q_tensor), q.data_ptr(), q.nbytes)
        operands = [ggml.tensor(self._context, kind, case.d, case.kv, case.hkv, case.b) for _ in range(2)]
        for first, *rows in chunks(case):
            for tensor, values in zip(operands, rows, strict=True):
                self._write(case, kind, ggml.data(tensor), first, values)
        mask = self._causal_mask(case) if case.q_len > 1 else None
        self._result = ggml.attention(self._context, q_tensor, *operands, mask, case.d**-0.5, 0.0, 0.0)
        self._graph = ggml.graph(self._context)
        ggml.expand(self._graph, self._result)
        self._shape = (case.b, case.q_len, case.hq, case.d)

    def _causal_mask(self, case: Case) -> int:
        """[q_len, kv] of 0 and -inf, which is how ggml is told that a call is causal."""
        mask = torch.full((case.q_len, case.kv), -torch.inf, dtype=torch.float16).triu(case.kv - case.q_len + 1)
        tensor = self._ggml.tensor(self._context, F16, case.kv, case.q_len, 1, 1)
        ctypes.memmove(self._ggml.data(tensor), mask.data_ptr(), mask.nbytes)
        return tensor

    def _write(self, case: Case, kind: int, target: int, first: int, values: torch.Tensor) -> None:
        row_bytes = self._ggml.row_size(kind, case.d)
        by_head = values.transpose(1, 2).contiguous()  # [b, hkv, tokens, d]
        for index, rows in enumerate(by_head.flatten(0, 1)):
            at = target + (index * case.kv + first) * row_bytes
            self._ggml.quantize(kind, rows.data_ptr(), at, 0, rows.shape[0], case.d, None)

    def call(self) -> None:
        if self._ggml.compute(self._ggml.backend, self._graph) != 0:
            raise RuntimeError("ggml_backend_graph_compute failed")

    def result(self) -> torch.Tensor:
        """[b, q_len, hq, d] of the last call."""
        out = torch.empty(self._shape)
        ctypes.memmove(out.data_ptr(), self._ggml.data(self._result), out.nbytes)
        return out

    def __del__(self) -> None:
        self._ggml.free(self._context)


def contestants(ggml: Ggml, case: Case) -> list[Contestant]:
    if case.kind == "append" or case.q_len > LONGEST_PROMPT:
        return []
    made = []
    for name, kind in TYPES.items():
        if case.d % (64 if name == "nvfp4" else 32):
            continue
        bytes_read = 2 * case.b * case.kv * case.hkv * ggml.row_size(kind, case.d)
        states = [State(ggml, case, kind) for _ in range(copies_for(bytes_read))]
        made.append(Contestant(f"ggml_{name}", [s.call for s in states], bytes_read))
    return made
