"""PageView: attention over pages, a page table and lengths that belong to the caller."""

from __future__ import annotations

from typing import Unpack

from mpfa import _core
from mpfa.arguments import AttendOptions, core_options, text
from mpfa.arrays import plain
from mpfa.pages import Pages
from mpfa.results import attend_core


class PageView:
    """K and V pages with a page table and lengths: what `attend` reads of a cache that the caller owns.

    k, v           `Pages` of layout "linear", or arrays of 16 or 32 bits [num_pages, page_size, kv_heads, d]
                   (order "HND": [num_pages, kv_heads, page_size, d]): read where they lie
    page_table     [batch, pages] int32 or int64 with lengths [batch] (tokens); entries past a length may hold
                   anything, pages may be shared; or instead, as FlashInfer has it,
    indptr         [batch + 1], indices [...], last_page_len [batch]: pages of sequence b are
                   indices[indptr[b]:indptr[b + 1]], the last one with last_page_len[b] tokens
    recipe         None: operands as they are stored, q in its own dtype, exact probabilities; otherwise a recipe
                   with the formats of k and v, and static means if it centres
    k_mean         [kv_heads, head_dim], q_mean [q_heads, head_dim], v_mean [kv_heads, head_dim_v]: for static means

    The arrays stay alive with the view and must not be resized. Page table and lengths are copied: `set_table` after
    they changed. Nothing is written except by `write_slots`.
    """

    def __init__(
        self,
        k,
        v,
        *,
        page_table=None,
        lengths=None,
        indptr=None,
        indices=None,
        last_page_len=None,
        order: str = "NHD",
        recipe: str | None = None,
        k_mean=None,
        q_mean=None,
        v_mean=None,
    ) -> None:
        self.k, self.v = (x if isinstance(x, Pages) else Pages(x, order=order) for x in (k, v))
        self._head_dim_v = self.v.head_dim
        means = {"k_mean": k_mean, "q_mean": q_mean, "v_mean": v_mean}
        self._core = _core.PageView(
            self.k._core,
            self.v._core,
            "" if recipe is None else _core.recipe_text(text(recipe, "recipe")),
            *(None if x is None else plain(x, name) for name, x in means.items()),
        )
        self.set_table(
            page_table=page_table, lengths=lengths, indptr=indptr, indices=indices, last_page_len=last_page_len
        )

    def set_table(self, *, page_table=None, lengths=None, indptr=None, indices=None, last_page_len=None) -> None:
        """Replace page table and lengths (either form; arguments as of the class)."""
        compressed = indptr is not None or indices is not None or last_page_len is not None
        if compressed == (page_table is not None) or compressed and lengths is not None:
            raise _core.MpfaError(
                "PageView: give page_table and lengths, or indptr, indices and last_page_len, and not both"
            )
        self._core.set_table(page_table, lengths, indptr, indices, last_page_len)

    def attend(self, q, *, causal: bool = True, return_lse: bool = False, **options: Unpack[AttendOptions]):
        """Attention of q over the pages; options and result as in `PagedCache.attend`."""
        return attend_core(self._core, q, self._head_dim_v, core_options(causal=causal, **options), return_lse)

    def write_slots(self, k, v, slot_mapping) -> dict[str, int]:
        """Quantise tokens IN PLACE into the pages, as the recipe says, and return the counters of the quantisers.

        k [n, kv_heads, head_dim], v [n, kv_heads, head_dim_v], float32, bfloat16 or float16; slot_mapping [n] int32 or
        int64: page * page_size + slot, each at most once, -1 skips the token. Page table and lengths do not change.
        """
        met = self._core.write_slots(plain(k, "k"), plain(v, "v"), slot_mapping)
        return dict(zip(("saturated", "flushed", "nonfinite"), met))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return self._core.lengths()

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def recipe(self) -> str | None:
        """The recipe that was given."""
        return self._core.recipe() or None

    def __repr__(self) -> str:
        return f"PageView(k={self.k!r}, v={self.v!r}, lengths={list(self.lengths)})"
