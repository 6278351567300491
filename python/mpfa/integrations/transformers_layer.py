"""The packed keys and values of one layer of a `transformers` model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.cache_utils import CacheLayerMixin

import mpfa

NAME = "mpfa"


@dataclass(frozen=True)
class StaticMeans:
    """Calibrated float32 means of one layer, post-RoPE; only those that the recipe takes."""

    k: torch.Tensor | None = None  # [kv_heads, d]
    q: torch.Tensor | None = None  # [q_heads, d]
    v: torch.Tensor | None = None  # [kv_heads, d_v]


class MpfaLayer(CacheLayerMixin):
    """The packed keys and values of one model layer."""

    is_sliding = False
    is_croppable = True

    def __init__(self, recipe: str, means: StaticMeans | None = None, page_size: int = 64) -> None:
        super().__init__()
        self.recipe = recipe
        self.means = means or StaticMeans()
        self.page_size = page_size
        self.packed: mpfa.PagedCache | None = None
        self._rows: list[int] = []  # the sequence of `packed` that a row of the batch is
        self._length = 0
        self._sealed = False
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None

    def lazy_initialization(self, key_states, value_states) -> None:
        """Nothing to do: the packed cache is made when the number of query heads is known."""

    def update(self, key_states, value_states, *args, **kwargs):
        """Park new post-RoPE keys and values [b, kv_heads, s, d] until the attention function runs."""
        if self._pending is not None:
            raise mpfa.MpfaError(
                "MpfaCache: keys of an earlier step were never attended; load the model with "
                f"attn_implementation='{NAME}' so that the cache and the attention function belong together"
            )
        tagged = key_states.view_as(key_states)
        tagged.mpfa_layer = self
        self._pending = (key_states, value_states)
        return tagged, value_states

    def attend(
        self, query: torch.Tensor, scale: float | None, window: tuple[int, int], softcap: float, sinks
    ) -> torch.Tensor:
        """Append the parked tokens and attend; query [b, q_heads, s, d] -> output [b, s, q_heads, d_v]."""
        if self._pending is None:
            raise mpfa.MpfaError("MpfaCache: the attention function ran twice after one cache update")
        (key, value), self._pending = self._pending, None
        q, k, v = (x.transpose(1, 2).contiguous() for x in (query, key, value))
        if self.packed is None:
            self.packed = self._create(q, k, v)
            self._rows = list(range(self.packed.batch))
            self.is_initialized = True
        elif q.shape[1] == 1:
            self.seal()
        self.packed.append(k, v, q=q, sequences=self._rows)
        self._length += k.shape[1]
        in_order = self._rows == sorted(self._rows)
        if not in_order:
            q = q[torch.tensor(self._rows).argsort()]
        out = self.packed.attend(q, softmax_scale=scale, causal=True, window=window, softcap=softcap, sinks=sinks)
        return out if in_order else out[self._rows]

    def seal(self) -> None:
        """End the 16-bit phase of recipes that have one. The first single-token step does it by itself."""
        if self.packed is not None and not self._sealed:
            self.packed.seal()
            self._sealed = True

    def _create(self, q, k, v) -> mpfa.PagedCache:
        return mpfa.PagedCache(
            self.recipe,
            q_heads=q.shape[2],
            kv_heads=k.shape[2],
            head_dim=k.shape[3],
            head_dim_v=v.shape[3],
            batch=k.shape[0],
            page_size=self.page_size,
            k_mean=self.means.k,
            q_mean=self.means.q,
            v_mean=self.means.v,
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        return self._length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        """Forget everything, frozen means included."""
        self.packed = None
        self._rows = []
        self.is_initialized = False
        self._length = 0
        self._sealed = False
        self._pending = None

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last -tokens_to_remove tokens, as assisted decoding does with rejected drafts."""
        if tokens_to_remove == 0 or not self.is_initialized:  # layers that share keys of others stay empty
            return
        length = self._length + tokens_to_remove
        if tokens_to_remove > 0 or length < 0:
            raise mpfa.MpfaError(
                f"MpfaCache: crop({tokens_to_remove}) of {self._length} tokens; give the negative number of tokens to "
                f"remove, {-self._length} to 0"
            )
        for sequence in self._rows:
            self.packed.truncate(sequence, length)
        self._length = length
        self._sealed = self._sealed and length > 0  # an empty cache starts a new 16-bit phase

    def reorder_cache(self, beam_idx) -> None:
        """Make row i of the batch what row beam_idx[i] is: rows taken twice become forks with shared pages."""
        if self._length == 0:
            return
        picked = beam_idx.tolist()
        if len(picked) != len(self._rows) or not all(0 <= row < len(self._rows) for row in picked):
            raise mpfa.MpfaError(
                f"MpfaCache: beam_idx {picked} for a batch of {len(self._rows)}; one row in 0..{len(self._rows) - 1} "
                "for each row is needed"
            )
        sources = [self._rows[row] for row in picked]
        spare = [sequence for sequence in self._rows if sequence not in sources]
        for sequence in spare:
            self.packed.free_sequence(sequence)
        rows: list[int] = []
        for source in sources:
            if source in rows:
                self.packed.fork(source, spare[-1])
                source = spare.pop()
            rows.append(source)
        self._rows = rows

    def _refuse(self, what: str):
        raise mpfa.MpfaError(
            f"MpfaCache does not support {what}: the number of packed sequences is that of the first forward pass; "
            "run the model on the whole batch"
        )

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._refuse("repeating the batch")

    def batch_select_indices(self, indices) -> None:
        self._refuse("selecting from the batch")

    def offload(self) -> None:
        raise mpfa.MpfaError("MpfaCache does not support offloading: packed pages stay in the memory they are in")

    def prefetch(self) -> None:
        self.offload()
