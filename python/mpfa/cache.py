"""PagedCache: packed keys and values of a batch of sequences."""

from __future__ import annotations

from typing import Unpack

from mpfa import _core
from mpfa.arguments import AttendOptions, core_options, flag, integer, text
from mpfa.arrays import plain
from mpfa.cache_transfer import move_to_device, take_from_device
from mpfa.device_view import DevicePageView
from mpfa.results import attend_core
from mpfa.rope import Rope, rotation, tables_of


def _int32_max(x: int, name: str, most: int = 2**31 - 1) -> int:
    if x > most:
        raise _core.MpfaError(f"{name} is {x}; at most {most} is allowed")
    return x


class PagedCache:
    """Keys and values of `batch` sequences, quantised as the recipe says when they are appended.

    recipe       "mxfp4", "mpfa", "k=nvfp4,v=fp8_e4m3,..." (see `mpfa.recipes()`)
    shared_kv    latent attention (head_dim 576, head_dim_v 512, one KV head): V is the first head_dim_v channels
                 of K and is stored once; `append` and `write_slots` take k alone
    page_size    tokens of a page, 1 to 4096
    capacity     tokens per sequence that the page pool holds; None lets it grow by itself, otherwise only
                 `reserve` makes it larger and an append without room raises and changes nothing
    k_mean       [kv_heads, head_dim], q_mean [q_heads, head_dim], v_mean [kv_heads, head_dim_v]: calibrated
                 means for recipes with centre, q_centre, v_mean = static
    k_scale      [kv_heads], v_scale [kv_heads]: calibrated scales for formats that store none

    One object may be used by several threads; calls on it run one after the other.
    """

    def __init__(
        self,
        recipe: str,
        *,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        head_dim_v: int | None = None,
        shared_kv: bool = False,
        batch: int = 1,
        page_size: int = 64,
        capacity: int | None = None,
        k_mean=None,
        q_mean=None,
        v_mean=None,
        k_scale=None,
        v_scale=None,
    ) -> None:
        self._batch = _int32_max(integer(batch, "batch", 1), "batch", 2**24)
        self._head_dim = integer(head_dim, "head_dim", 1)
        self._head_dim_v = self._head_dim if head_dim_v is None else integer(head_dim_v, "head_dim_v", 1)
        self._q_heads = integer(q_heads, "q_heads", 1)
        self._kv_heads = integer(kv_heads, "kv_heads", 1)
        self._shared_kv = flag(shared_kv, "shared_kv")
        self._page_size = integer(page_size, "page_size", 1)
        calibrated = {"k_mean": k_mean, "q_mean": q_mean, "v_mean": v_mean, "k_scale": k_scale, "v_scale": v_scale}
        self._scales = k_scale, v_scale
        self._core = _core.Cache(
            text(recipe, "recipe"),
            self._q_heads,
            self._kv_heads,
            self._head_dim,
            self._head_dim_v,
            self._shared_kv,
            self._batch,
            self._page_size,
            -1 if capacity is None else integer(capacity, "capacity", 0),
            *(None if x is None else plain(x, name) for name, x in calibrated.items()),
        )
        self.recipe: str = self._core.recipe()

    def append(
        self,
        k,
        v=None,
        q=None,
        sequences=None,
        counts=None,
        *,
        rope: Rope | None = None,
        positions=None,
        rotate_q=None,
        q_positions=None,
    ):
        """Append k [n, s, kv_heads, head_dim] and v [n, s, kv_heads, head_dim_v] to n sequences (no v: shared_kv).

        sequences: ids of the n sequences (default: all, in order); counts: tokens of each row that are real
        (default: all s). q [n, s, q_heads, head_dim] is read only by recipes with q_centre=mean, at the first
        append of a sequence. float32, bfloat16 or float16. All or nothing.

        With `rope`, k (and q for its mean) is rotated first, at positions [n, s] or, without, at the index of each
        token in its sequence. rotate_q [n, sq, q_heads, head_dim] is rotated too and returned, at q_positions [n, sq]
        or, without, where the tokens of the call are.
        """
        rotated, turn = rotation(rope, positions, rotate_q, q_positions)
        self._core.append(
            plain(k, "k"),
            None if v is None else plain(v, "v"),
            None if q is None else plain(q, "q"),
            sequences,
            counts,
            turn,
        )
        return rotated()

    def attend(self, q, *, causal: bool = True, return_lse: bool = False, **options: Unpack[AttendOptions]):
        """Attention of q over everything appended, with the options of `AttendOptions`.

        q  [batch, s, q_heads, head_dim], or [total, q_heads, head_dim] with cu_seqlens_q; its rows are the last
           positions of their sequence (bottom-right alignment)

        Returns out like q (with head_dim_v), and with return_lse also the log-sum-exp, float32 natural log,
        [batch, q_heads, s] or [q_heads, total]. A row without keys gives 0 and -inf.
        """
        return attend_core(self._core, q, self._head_dim_v, core_options(causal=causal, **options), return_lse)

    def seal(self) -> None:
        """End the 16-bit phase of recipes that have one (phase_switch); does nothing for others."""
        self._core.seal()

    def reserve(self, tokens: int) -> None:
        """Make the pool hold at least `tokens` per sequence; contents and page ids stay."""
        self._core.reserve(integer(tokens, "tokens", 0))

    def free_sequence(self, sequence: int) -> None:
        """Give the pages of a sequence back; its length becomes 0 and its measured means are forgotten."""
        self._core.free_sequence(integer(sequence, "sequence", 0))

    def fork(self, source: int, target: int, tokens: int | None = None) -> None:
        """Make the empty sequence `target` hold the first `tokens` tokens of `source` (default: all).

        Pages are shared, and copied by the first append that writes into them; means are copied. `tokens` obeys
        the rule of `truncate`.
        """
        count = -1 if tokens is None else integer(tokens, "tokens", 0)
        self._core.fork(integer(source, "source", 0), integer(target, "target", 0), count)

    def truncate(self, sequence: int, tokens: int) -> None:
        """Drop the tokens of a sequence from `tokens` on, such as rejected drafts.

        What follows has the bits of a cache that never saw them; measured means stay, except at length 0. Recipes
        that keep tokens in 16 bits allow every length down to that before the last append, and the error names
        what else is possible; other recipes allow all.
        """
        self._core.truncate(integer(sequence, "sequence", 0), integer(tokens, "tokens", 0))

    def save(self, sequence: int) -> bytes:
        """A sequence as bytes: recipe, shape, tokens, means, pages, checksum; nothing of other sequences."""
        return self._core.save(integer(sequence, "sequence", 0))

    def load(self, sequence: int, data) -> None:
        """Put the bytes of `save` (any bytes-like object) into an empty sequence, of this cache or another.

        Recipe, shape, page size and calibrated scales must be those of the saved cache. Damaged bytes are refused.
        """
        if not isinstance(data, bytes):
            try:
                data = bytes(memoryview(data))
            except TypeError:
                raise _core.MpfaError(f"data is a {type(data).__name__}; the bytes of save are needed") from None
        self._core.load(integer(sequence, "sequence", 0), data)

    def shift(self, sequence: int, start: int, delta: int, rope: Rope) -> None:
        """Turn the keys of tokens from `start` on by `delta` positions (either way), where they are stored.

        Packed keys are read, turned and quantised again, so every call costs one more rounding of K. `rope` is what
        the keys were rotated with; the row |delta| of its tables is used. Refused for K formats whose tokens share
        scales.
        """
        self._core.shift(
            integer(sequence, "sequence", 0), integer(start, "start", 0), integer(delta, "delta"), tables_of(rope)
        )

    def remove(self, sequence: int, begin: int, end: int, rope: Rope | None = None) -> None:
        """Drop tokens begin to end - 1 and close the gap, as a context shift does; pages stay dense.

        With `rope` keys of later tokens turn back by end - begin positions, as `shift` does; without, they move bit
        for bit, as V always does. Refused for formats whose tokens share scales, for tokens of the sink, and where
        tokens would have to be 16-bit that exist as codes only.
        """
        self._core.remove(
            integer(sequence, "sequence", 0),
            integer(begin, "begin", 0),
            integer(end, "end", 0),
            None if rope is None else tables_of(rope),
        )

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
        """Write tokens to slots of the pool, for schedulers with page tables of their own.

        k [n, kv_heads, head_dim], v [n, kv_heads, head_dim_v], float32, bfloat16 or float16; slot_mapping [n] int32
        or int64: page * page_size + slot, each at most once, -1 skips the token. Lengths do not change, and the
        pool does not grow (see `reserve`). A free page is the caller's until `free_slots`. Refused for recipes
        that keep 16-bit tokens or take means from a first append, and for pages that forks share. v is None with
        shared_kv.

        With `rope`, k is rotated at positions [n], which are needed; rotate_q [sq, q_heads, head_dim] is rotated at
        q_positions [sq] (default: positions) and returned.
        """
        rotated, turn = rotation(rope, positions, rotate_q, q_positions)
        self._core.write_slots(plain(k, "k"), None if v is None else plain(v, "v"), slot_mapping, turn)
        return rotated()

    def free_slots(self, pages, generations=None) -> None:
        """Give back pages (ids, each once) that `write_slots` took; `generations` as in `set_pages`."""
        self._core.free_slots(pages, generations)

    def import_pages(self, sequence: int, k, v, pages, tokens: int) -> None:
        """Fill an empty sequence with `tokens` tokens from pages (ids in token order) of the caller.

        k, v: `Pages` of this cache's formats, page size, heads and calibrated scales, in any layout; copied bit for
        bit. They must hold what this cache would store. Refused for recipes that keep 16-bit tokens, take means from a
        first append or store rank-one terms.
        """
        self._core.import_pages(
            integer(sequence, "sequence", 0), k._core, v._core, pages, integer(tokens, "tokens", 0)
        )

    def export_pages(self, sequence: int, k, v, pages) -> None:
        """Copy the pages of a sequence IN PLACE into pages (ids, as many as it has) of `k` and `v`, bit for bit.

        The inverse of `import_pages`; refused when some tokens are in 16 bits. Slots past the length become zero.
        """
        self._core.export_pages(integer(sequence, "sequence", 0), k._core, v._core, pages, False)

    def to_device(self, device="cuda", *, max_tokens: int | None = None) -> DevicePageView:
        """A copy of all sequences in the memory of a CUDA device, bit for bit, with the page ids of this cache.

        The pool there has num_pages pages and a page table for `max_tokens` per sequence (default: what the longest
        has now). Means travel along. Arrays are torch tensors when torch is loaded. Refused where `export_pages` is,
        and with shared_kv.
        """
        return move_to_device(self, device, max_tokens)

    def from_device(self, view: DevicePageView) -> None:
        """Take the sequences of a `DevicePageView` over, bit for bit; waits for the work of the device.

        All sequences must be empty and as many as the view has. Refused where `import_pages` is.
        """
        take_from_device(self, view)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of the pool with codes, scales and rank-one terms."""
        self._core.copy_page(integer(source, "source", 0), integer(target, "target", 0))

    def set_pages(self, sequence: int, pages, generations=None) -> None:
        """Give the tokens of a sequence other page ids (its own or free ones), as many as it has now.

        With `generations` (one per page, from `page_generation`), pages whose generation is another one are refused.
        """
        self._core.set_pages(integer(sequence, "sequence", 0), pages, generations)

    def page_generation(self, page: int) -> int:
        """A number to store beside a page id: while it stays the same, the page holds the tokens that it held then.

        Raised when the page is given out or given back, and when its tokens are overwritten: by an append after
        `truncate` or `fork`, by `remove`, `shift`, `copy_page`, or `write_slots` into a sequence; `reserve` raises
        those of free pages. Writes by slot into pages of no sequence are not seen.
        """
        return self._core.page_generation(integer(page, "page", 0))

    @property
    def batch(self) -> int:
        return self._batch

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return tuple(self._core.lengths())

    @property
    def page_table(self) -> list[list[int]]:
        """Ids of the pages of each sequence, in token order."""
        return self._core.page_table()

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self._core.num_pages()

    @property
    def free_pages(self) -> int:
        return self._core.free_pages()

    @property
    def bytes_per_token(self) -> float:
        """Exact packed bytes of one token over all KV heads (codes, scales, rank-one terms, means of pages)."""
        return _core.bytes_per_token(
            self.recipe,
            self._q_heads,
            self._kv_heads,
            self._head_dim,
            self._head_dim_v,
            self._page_size,
            self._shared_kv,
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes in use now: used pages, tokens kept in 16 bits, means."""
        return self._core.memory_bytes()

    @property
    def counters(self) -> dict[str, int]:
        """What the quantisers met: saturated elements, blocks flushed to zero, blocks with NaN or Inf."""
        return dict(zip(("saturated", "flushed", "nonfinite"), self._core.counters()))

    def __repr__(self) -> str:
        return (
            f"PagedCache({self.recipe!r}, q_heads={self._q_heads}, kv_heads={self._kv_heads}, "
            f"head_dim={self._head_dim}, batch={self._batch}, lengths={list(self.lengths)})"
        )
