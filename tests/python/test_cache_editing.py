"""Fork, truncate, save and load, slots: what remains equals a cache that was built directly."""

import subprocess
import sys

import numpy as np
import pytest
from oracle import EXACT

import mpfa

RNG = np.random.default_rng(41)
RECIPES = [
    EXACT,
    "mxfp4",
    "nvfp4,centre=none",
    "fp8",
    "bitdecoding_nvfp4",
    "mxfp4,centre=none,sink=4,recent=16",
    "kv=mxfp4,v_mean=page",
]
PAGE = 128  # what formats with blocks along the keys take


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


K, V, Q = normal(1, 400, 2, 32), normal(1, 400, 2, 32), normal(1, 1, 4, 32)
OTHER_K, OTHER_V = normal(1, 400, 2, 32), normal(1, 400, 2, 32)


def new(recipe, batch=1, page_size=PAGE, **options):
    return mpfa.PagedCache(recipe, q_heads=4, kv_heads=2, head_dim=32, batch=batch, page_size=page_size, **options)


def append(cache, first, last, k=K, v=V, sequence=0):
    cache.append(k[:, first:last], v[:, first:last], sequences=[sequence])


def read(cache, sequence=0):
    """Output and log-sum-exp of Q over one sequence, as bytes."""
    rows = np.zeros((cache.batch, 1, 4, 32), np.float32)
    rows[sequence] = Q[0]
    out, lse = cache.attend(rows, return_lse=True)
    return out[sequence].tobytes() + lse[sequence].tobytes()


def built(recipe, *parts):
    """A cache of one sequence from (first, last, k, v) appends."""
    cache = new(recipe)
    for part in parts:
        append(cache, *part)
    return cache


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kept", [200, 201, 256, 263])
def test_truncate_and_append_equals_fresh(recipe, kept):
    cache = built(recipe, (0, 200), (200, 264, OTHER_K, OTHER_V))
    cache.truncate(0, kept)
    fresh = built(recipe, (0, 200), (200, kept, OTHER_K, OTHER_V))
    assert cache.lengths == (kept,) and read(cache) == read(fresh)
    for c in (cache, fresh):
        append(c, kept, 390)
    assert read(cache) == read(fresh)
    assert cache.save(0) == fresh.save(0)
    cache.truncate(0, 0)
    assert cache.lengths == (0,) and cache.free_pages == cache.num_pages


@pytest.mark.parametrize("recipe", RECIPES)
def test_fork_shares_then_diverges(recipe):
    cache = new(recipe, batch=3)
    append(cache, 0, 300)
    free = cache.free_pages
    cache.fork(0, 1)
    cache.fork(0, 2, 300)
    assert cache.free_pages == free and cache.page_table[1] == cache.page_table[0]
    assert read(cache, 1) == read(cache, 0)
    append(cache, 300, 390, OTHER_K, OTHER_V, sequence=1)
    append(cache, 300, 390, sequence=2)
    assert read(cache, 0) == read(built(recipe, (0, 300)))
    assert read(cache, 1) == read(built(recipe, (0, 300), (300, 390, OTHER_K, OTHER_V)))
    assert read(cache, 2) == read(built(recipe, (0, 300), (300, 390)))
    for sequence in range(3):
        cache.free_sequence(sequence)
    assert cache.free_pages == cache.num_pages


def test_pool_grows_for_the_copies_of_many_forks():
    cache = new("mxfp4", batch=40, page_size=16)
    append(cache, 0, 24)
    for target in range(1, 40):
        cache.fork(0, target)
    cache.append(np.repeat(OTHER_K[:, :33], 40, axis=0), np.repeat(OTHER_V[:, :33], 40, axis=0))
    assert cache.lengths == (57,) * 40 and read(cache, 39) == read(cache, 0)


def test_sealing_grows_the_pool_for_forks():
    recipe = "mxfp4,centre=none,phase_switch=on"
    cache, fresh = new(recipe, batch=8), built(recipe, (0, 390))
    append(cache, 0, 390)
    for target in range(1, 8):
        cache.fork(0, target)
    for c in (cache, fresh):
        c.seal()
    assert [read(cache, i) for i in range(8)] == [read(fresh)] * 8


@pytest.mark.parametrize("recipe", RECIPES)
def test_saved_sequences_continue_elsewhere(recipe):
    cache = built(recipe, (0, 300))
    blob = cache.save(0)
    assert isinstance(blob, bytes)
    for data in (blob, bytearray(blob), memoryview(blob), np.frombuffer(blob, np.uint8)):
        other = new(recipe, batch=3)
        append(other, 0, 10, OTHER_K, OTHER_V)
        other.load(2, data)
        assert other.lengths == (10, 0, 300) and read(other, 2) == read(cache) and other.save(2) == blob
    append(cache, 300, 390)
    append(other, 300, 390, sequence=2)
    assert read(other, 2) == read(cache)


def test_another_process_reads_the_bytes(tmp_path):
    blob = built("nvfp4", (0, 300)).save(0)
    (tmp_path / "in").write_bytes(blob)
    program = (
        "import sys, mpfa; c = mpfa.PagedCache('nvfp4', q_heads=4, kv_heads=2, head_dim=32, page_size=128);"
        "c.load(0, open(sys.argv[1], 'rb').read()); open(sys.argv[2], 'wb').write(c.save(0))"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "in", tmp_path / "out"], check=True)
    assert (tmp_path / "out").read_bytes() == blob


def test_hostile_bytes_are_refused_and_change_nothing():
    source = built("bitdecoding_nvfp4", (0, 300))
    blob, cache = source.save(0), new("bitdecoding_nvfp4", batch=2)
    append(cache, 0, 200)
    before = read(cache), cache.free_pages
    places = [*range(0, 600), *RNG.integers(600, len(blob), 100).tolist()]
    broken = [blob[:at] + bytes([blob[at] ^ 0x41]) + blob[at + 1 :] for at in places]
    broken += [blob[: len(blob) // 8 * eighth] for eighth in range(8)] + [blob + b"0", b"MPFA-SEQ", bytes(5000)]
    for data in broken:
        with pytest.raises(mpfa.MpfaError, match="load: "):
            cache.load(1, data)
    with pytest.raises(mpfa.MpfaError, match="holds 200 tokens"):
        cache.load(0, blob)
    for recipe, options in (("bitdecoding_mxfp4", {}), ("mxfp4", {}), ("bitdecoding_nvfp4", {"page_size": 256})):
        with pytest.raises(mpfa.MpfaError, match="blob's"):
            new(recipe, **options).load(0, blob)
    with pytest.raises(mpfa.MpfaError, match="pages"):
        new("bitdecoding_nvfp4", capacity=128).load(0, blob)
    assert (read(cache), cache.free_pages) == before


def test_slots_hold_what_append_holds():
    recipe = "mxfp4,centre=none"
    cache = new(recipe, page_size=16, capacity=96)
    append(cache, 0, 40, OTHER_K, OTHER_V)
    slots = [cache.page_table[0][t // 16] * 16 + t % 16 for t in range(40)]
    mapping = np.int64([slot if t % 4 else -1 for t, slot in enumerate(slots)])
    cache.write_slots(K[0, :40], V[0, :40], mapping)
    written = (np.arange(40) % 4 > 0)[None, :, None, None]
    fresh = new(recipe, page_size=16)
    fresh.append(np.where(written, K[:, :40], OTHER_K[:, :40]), np.where(written, V[:, :40], OTHER_V[:, :40]))
    assert cache.lengths == (40,) and read(cache) == read(fresh)


def test_free_pages_written_by_slot_are_the_callers():
    cache = new("fp8", page_size=16, capacity=64)
    cache.write_slots(K[0, :16], V[0, :16], list(range(16, 32)))
    assert cache.free_pages == 3
    append(cache, 0, 48, OTHER_K, OTHER_V)
    assert 1 not in cache.page_table[0]
    cache.copy_page(1, cache.page_table[0][0])
    cache.truncate(0, 16)
    fresh = new("fp8", page_size=16)
    append(fresh, 0, 16)
    assert read(cache) == read(fresh)
    cache.free_slots([1])
    assert cache.free_pages == 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda c: c.fork(0, 0), "holds 40 tokens"),
        (lambda c: c.fork(0, 3), "0..1"),
        (lambda c: c.fork(0, 1, 41), "0..40"),
        (lambda c: c.fork(0, 1, -1), "tokens is -1"),
        (lambda c: c.fork(0, 1, True), "tokens is True"),
        (lambda c: c.truncate(0, 41), "0..40"),
        (lambda c: c.truncate(0, 2**80), "tokens is"),
        (lambda c: c.truncate(2, 0), "0..1"),
        (lambda c: c.truncate(0, None), "tokens is None"),
        (lambda c: c.save(2), "0..1"),
        (lambda c: c.save("0"), "sequence"),
        (lambda c: c.load(1, 5000), "data is a int"),
        (lambda c: c.load(1, "MPFA-SEQ"), "data is a str"),
        (lambda c: c.write_slots(K[0, :2], V[0, :2], [0, 0]), "twice"),
        (lambda c: c.write_slots(K[0, :2], V[0, :2], [0, 64]), "0..63"),
        (lambda c: c.write_slots(K[0, :2], V[0, :2], [0, -2]), r"slot_mapping\[1\] is -2"),
        (lambda c: c.write_slots(K[0, :2], V[0, :2], [0]), "one slot each"),
        (lambda c: c.write_slots(K[0, :2], V[0, :3], [0, 1]), "v has 3 tokens"),
        (lambda c: c.write_slots(K[0, :2, :1], V[0, :2], [0, 1]), "k has shape"),
        (lambda c: c.write_slots(K[:, :2], V[:, :2], [0, 1]), "k has shape"),
        (lambda c: c.write_slots(K[0, :2], V[0, :2], None), "slot_mapping is None"),
        (lambda c: c.write_slots(K[0, :2], V[0, :2], np.float32([0, 1])), "int32 or int64"),
        (lambda c: c.write_slots(None, V[0, :2], [0, 1]), "k is a NoneType"),
        (lambda c: c.free_slots([0]), "belongs to a sequence"),
        (lambda c: c.free_slots([9]), "0..3"),
        (lambda c: c.free_slots([-1]), "not an id"),
        (lambda c: c.free_slots(None), "pages is None"),
        (lambda c: c.free_slots([0], [7]), "generation 1, expected 7"),
        (lambda c: c.set_pages(0, [0, 1, 2], [1, 1, 0]), "page 2 was given out again"),
        (lambda c: c.set_pages(0, [0, 1, 3], [1, 1, 9]), "page 3 was given back"),
        (lambda c: c.set_pages(0, [0, 1, 2], [1, 1]), "2 generations given for 3 pages"),
        (lambda c: c.set_pages(0, [0, 1, 2], [1, 1, 1.0]), "generations holds a float"),
        (lambda c: c.page_generation(4), "0..3"),
        (lambda c: c.page_generation(-1), "page is -1"),
    ],
)
def test_bad_edits_are_refused_and_change_nothing(call, message):
    cache = new("mxfp4,centre=none", batch=2, page_size=16, capacity=32)
    append(cache, 0, 40)
    before = read(cache), cache.free_pages, cache.lengths
    with pytest.raises(mpfa.MpfaError, match=message):
        call(cache)
    assert (read(cache), cache.free_pages, cache.lengths) == before


def test_a_stored_page_list_is_refused_once_its_pages_were_reused():
    cache = new("mxfp4,centre=none", batch=2, page_size=16, capacity=64)
    append(cache, 0, 40)
    pages = cache.page_table[0]
    stored = [cache.page_generation(page) for page in pages]
    cache.fork(0, 1)
    cache.free_sequence(0)
    cache.set_pages(1, pages, stored)  # the fork held them
    cache.free_sequence(1)
    append(cache, 0, 40, OTHER_K, OTHER_V, sequence=1)
    assert cache.page_table[1] == pages
    with pytest.raises(mpfa.MpfaError, match="page 0 was given out again.*expected 1.*drop the entry"):
        cache.set_pages(1, pages, np.array(stored))
    cache.set_pages(1, pages, [cache.page_generation(page) for page in pages])


def test_recipes_that_cannot_are_named():
    slots = (K[0, :2], V[0, :2], [0, 1])
    with pytest.raises(mpfa.MpfaError, match="first append"):
        new("mxfp4").write_slots(*slots)
    with pytest.raises(mpfa.MpfaError, match="bf16 beside the pages"):
        new("bitdecoding_nvfp4").write_slots(*slots)
    cache = built("mxfp4,centre=none,recent=16", (0, 200), (200, 230))
    with pytest.raises(mpfa.MpfaError, match="allowed lengths"):
        cache.truncate(0, 100)
    assert cache.lengths == (230,)
