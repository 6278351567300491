"""PageView: attention over pages, a page table and lengths that belong to the caller."""

from __future__ import annotations

from typing import Unpack

from mpfa import _core
from mpfa.arguments import AttendOptions, core_options, integer, text
from mpfa.arrays import plain
from mpfa.pages import Pages
from mpfa.results import attend_core
from mpfa.rope import Rope, rotation


class PageView:
    """K and V pages with a page table and lengths: what `attend` reads of a cache that the caller owns.

    k, v           `Pages` of layout "linear", or arrays of 16 or 32 bits [num_pages, page_size, kv_heads, d]
                   (order "HND": [num_pages, kv_heads, page_size, d]): read where they lie. v None: a latent cache,
                   whose V is the first head_dim_v channels of K, as of `PagedCache(shared_kv=True)`
    page_table     [batch, pages] int32 or int64 with lengths [batch] (tokens); entries past a length may hold
                   anything, pages may be shared; or instead, as FlashInfer has it,
    indptr         [batch + 1], indices [...], last_page_len [batch]: pages of sequence b are
                   indices[indptr[b]:indptr[b + 1]], the last one with last_page_len[b] tokens
    recipe         None: operands as they are stored, q in its own dtype, exact probabilities; otherwise a recipe
                   with the formats of k and v, and static means if it centres
    k_mean         [kv_heads, head_dim], q_mean [q_heads, head_dim], v_mean [kv_heads, head_dim_v]: for static means
    head_dim_v     channels of V, with v None only

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
        head_dim_v: int | None = None,
    ) -> None:
        if (v is None) != (head_dim_v is not None):
            raise _core.MpfaError(
                f"PageView: v is {'None' if v is None else 'given'} and head_dim_v is {head_dim_v}; pass pages of V, or "
                "v=None and the head_dim_v channels of K that V is"
            )
        self.k = k if isinstance(k, Pages) else Pages(k, order=order)
        self.v = v if v is None or isinstance(v, Pages) else Pages(v, order=order)
        self._head_dim_v = integer(head_dim_v, "head_dim_v", 1) if v is None else self.v.head_dim
        means = {"k_mean": k_mean, "q_mean": q_mean, "v_mean": v_mean}
        self._core = _core.PageView(
            self.k._core,
            None if self.v is None else self.v._core,
            self._head_dim_v,
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
    ):
        """Quantise tokens IN PLACE into the pages, with the bytes of `PagedCache.write_slots` for the recipe.

        k [n, kv_heads, head_dim], v [n, kv_heads, head_dim_v] (None where the view has no v), float32, bfloat16 or
        float16; slot_mapping [n] int32 or int64: page * page_size + slot, each at most once, -1 skips the token. Page
        table and lengths do not change. Returns the counters of the quantisers, a dict of "saturated", "flushed" and
        "nonfinite".

        With `rope`, k is rotated first (in float32, not rounded) at positions [n], which are needed; rotate_q
        [sq, q_heads, head_dim] is rotated at q_positions [sq] (default: positions), and (counters, rotated q) is
        returned. The queries of skipped tokens are undefined unless q_positions are given.
        """
        rotated, turn = rotation(rope, positions, rotate_q, q_positions)
        met = self._core.write_slots(plain(k, "k"), None if v is None else plain(v, "v"), slot_mapping, turn)
        counters = dict(zip(("saturated", "flushed", "nonfinite"), met))
        return counters if rotate_q is None else (counters, rotated())

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
