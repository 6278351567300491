"""DevicePageView: attention and writes over pages that an engine owns in GPU memory."""

from __future__ import annotations

from typing import Unpack

from mpfa import _core
from mpfa.arguments import AttendOptions, ProblemFields, core_options, integer, problem_fields, text
from mpfa.arrays import kind_of, plain
from mpfa.device_arrays import empty_beside, stream_address
from mpfa.pages import Pages
from mpfa.results import lse_shape
from mpfa.rope import Rope, rotation


class DevicePlan:
    """An attention call over a `DevicePageView`, made once by its `plan` and enqueued any number of times."""

    def __init__(self, view: DevicePageView, fields: tuple, device: str, own_workspace: bool) -> None:
        self._core = _core.DevicePlan(view._core, fields, device)
        self._head_dim_v, self._out_dtype = view.v.head_dim, fields[11]
        if own_workspace:
            self._core.allocate()

    @property
    def kernel(self) -> str:
        return self._core.kernel()

    @property
    def workspace_bytes(self) -> int:
        """Exact size of the workspace."""
        return self._core.workspace_bytes()

    def attend(
        self,
        q,
        *,
        out=None,
        lse=None,
        return_lse: bool = False,
        sinks=None,
        mask=None,
        alibi_slopes=None,
        cu_seqlens_q=None,
        workspace=None,
        stream=None,
    ):
        """Enqueue the attention of q, [batch, s, q_heads, head_dim] or ragged [total, q_heads, head_dim]; returns out,
        or (out, lse) with return_lse or a given lse.

        out           like q with head_dim_v; None: a new torch tensor (q of other libraries: out is needed)
        lse           float32 [batch, q_heads, s] or [q_heads, total]; None with return_lse: a new torch tensor
        sinks         float32 [q_heads], exactly when planned with sinks; alibi_slopes likewise
        mask          bool or float32 as in `AttendOptions`, with max_kv keys, exactly when planned with one
        cu_seqlens_q  int64 [batch + 1] on the device, for ragged q
        workspace     uint8 [workspace_bytes or more] aligned to 64; None: the plan's own, which serves one stream at a
                      time
        stream        an int, or a stream of torch, cupy or cuda.core; None: torch's current stream, for other libraries
                      the default stream

        Allocates nothing but outputs that were not given, waits for nothing, and may be captured into a CUDA graph.
        """
        if out is None:
            shape = kind_of(q, "q").shape(q)
            out = empty_beside(q, "out", (*shape[:-1], self._head_dim_v), self._out_dtype)
        if lse is None and return_lse:
            lse = empty_beside(q, "lse", lse_shape(kind_of(q, "q").shape(q)), "float32")
        address = stream_address(stream, q)
        self._core.attend(plain(q, "q"), out, lse, sinks, mask, alibi_slopes, cu_seqlens_q, workspace, address)
        return out if lse is None else (out, lse)


class DevicePageView:
    """K and V pages, a page table and lengths in the memory of one CUDA device: what an engine owns.

    k, v        `Pages` of layout "linear" over device arrays (torch, or anything with `__dlpack__` or
                `__cuda_array_interface__`)
    page_table  int32 [batch, pages], rows contiguous; entries past a length may hold anything
    lengths     int64 [batch] tokens
    recipe      None: operands as they are stored, P in 16 bits; otherwise a recipe with the formats of k and v
    k_mean      float32 [kv_heads, head_dim], v_mean float32 [kv_heads, head_dim_v]: what was subtracted before
                quantising; or [batch, ...], a mean for each sequence

    All of them are read on the device when a call runs, so their contents may change between calls and between
    launches of a captured graph; the arrays stay alive with the view. They must be memory of the device that is
    current in a call (`torch.cuda.device`): others are refused, never copied. No call makes a stream wait for another:
    order the work that fills the arrays, or put it on the same stream. A page id outside the pool makes the rows of
    its sequence NaN.
    """

    def __init__(
        self,
        k: Pages,
        v: Pages,
        *,
        page_table,
        lengths,
        recipe: str | None = None,
        k_mean=None,
        v_mean=None,
        _state=None,  # of PagedCache.to_device: what a cache keeps beside pages and means
    ):
        for x, name in ((k, "k"), (v, "v")):
            if not isinstance(x, Pages):
                raise _core.MpfaError(f"DevicePageView: {name} is a {type(x).__name__}; mpfa.Pages are needed")
        self.k, self.v = k, v
        self.recipe = None if recipe is None else _core.recipe_text(text(recipe, "recipe"))
        self._core = _core.DeviceView(k._core, v._core, self.recipe or "", k_mean, v_mean, _state)
        self._has_state = _state is not None
        self._plans: dict[tuple, DevicePlan] = {}
        self.set_table(page_table=page_table, lengths=lengths)

    def set_table(self, *, page_table, lengths) -> None:
        """Use other arrays from the next call on. A graph that was captured keeps the ones it was captured with."""
        self._core.set_table(page_table, lengths)
        self.page_table, self.lengths = page_table, lengths

    @property
    def batch(self) -> int:
        return self._core.batch()

    def plan(
        self,
        *,
        q_heads: int,
        device: str = "cuda",
        own_workspace: bool = True,
        **problem: Unpack[ProblemFields],
    ) -> DevicePlan:
        """Plan calls of the first `batch` sequences (default: all) with at most max_q query rows and max_kv keys
        (default: what the page table has room for) each; the fields of `ProblemFields`, q_dtype "bfloat16" by default.

        device "cuda" stands for the kind of the current device. own_workspace: hold a workspace in device memory;
        without it every call gives one. MpfaError with every reason when no kernel takes the problem or there is no
        card.
        """
        room = self._core.columns() * self.k.page_size
        problem = {"q_dtype": "bfloat16", "batch": self.batch, "max_kv": room, **problem}
        recipe = self._core.recipe_for(text(problem["q_dtype"], "q_dtype"))
        k, v = self.k, self.v
        fields = problem_fields(recipe, q_heads, k.kv_heads, k.head_dim, v.head_dim, k.page_size, **problem)
        return DevicePlan(self, fields, text(device, "device"), own_workspace)

    def attend(
        self,
        q,
        *,
        causal: bool = True,
        return_lse: bool = False,
        out=None,
        lse=None,
        max_q: int | None = None,
        stream=None,
        **options: Unpack[AttendOptions],
    ):
        """Attention of q over the pages, with the options of `AttendOptions`; plans on the first call of a kind and
        stream and keeps the plan. `DevicePlan.attend` describes arrays and result.

        max_q: most rows of a sequence, needed with cu_seqlens_q, which the host does not read.
        """
        scale, softcap, causal, left, right, sinks, mask, slopes, cu, _ = core_options(causal=causal, **options)
        kind = kind_of(q, "q")
        shape = kind.shape(q)
        lse_shape(shape)
        if cu is not None and max_q is None:
            raise _core.MpfaError("max_q is None; with cu_seqlens_q give the most rows of a sequence")
        fields = {
            "q_dtype": kind.dtype(q),
            "max_q": shape[1] if cu is None else integer(max_q, "max_q", 1),
            "softmax_scale": scale or None,
            "softcap": softcap,
            "causal": causal,
            "window": (left, right),
            "sinks": sinks is not None,
            "alibi": slopes is not None,
            "mask": "none" if mask is None else "additive" if kind.dtype(mask) == "float32" else "boolean",
        }
        address = stream_address(stream, q)
        key = (shape[-2], self.batch, self._core.columns(), address, *fields.values())
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self.plan(q_heads=shape[-2], **fields)
        extras = {"sinks": sinks, "mask": mask, "alibi_slopes": slopes, "cu_seqlens_q": cu}
        return plan.attend(q, out=out, lse=lse, return_lse=return_lse, stream=address, **extras)

    def write_slots(
        self,
        k,
        v,
        slot_mapping,
        *,
        rope: Rope | None = None,
        positions=None,
        rotate_q=None,
        q_positions=None,
        counters=None,
        stream=None,
    ):
        """Enqueue quantising tokens IN PLACE into the pages, with the bytes of `PagedCache.write_slots`.

        k [n, kv_heads, head_dim], v [n, kv_heads, head_dim_v], float32, bfloat16 or float16; slot_mapping int64 [n]:
        page * page_size + slot, each at most once, others (-1) skip the token. counters: int64 [3] that is added to
        (non-finite blocks, saturated elements, flushed blocks). stream as in `DevicePlan.attend`. Page table and
        lengths do not change. May be captured.

        With `rope`, of tables on the device, k is rotated first, in the same launch, at positions int64 [n], which are
        needed; rotate_q [sq, q_heads, head_dim] is rotated at q_positions int64 [sq] (default: positions) into a new
        torch tensor, which is returned.
        """
        rotated, turn = rotation(rope, positions, rotate_q, q_positions, empty_beside)
        address = stream_address(stream, k)
        self._core.write_slots(plain(k, "k"), plain(v, "v"), slot_mapping, turn, counters, address)
        return rotated()

    def __repr__(self) -> str:
        return f"DevicePageView(k={self.k!r}, v={self.v!r}, batch={self.batch})"
