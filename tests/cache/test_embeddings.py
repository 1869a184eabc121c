"""Embedding rows and the host tier, one rule at a time. test_embeddings_model.py has them all together."""

import pytest

from sightline.cache.embeddings import EmbeddingCache, EmbeddingEntry, EmbeddingState, Offload


def ready(cache: EmbeddingCache, key: bytes, rows: int) -> EmbeddingEntry:
    entry = cache.reserve(key, rows).entry
    cache.mark_ready(entry)
    return entry


def on_device(cache: EmbeddingCache, keys: str) -> str:
    return "".join(key for key in keys if cache.lookup(key.encode()))


def in_host(cache: EmbeddingCache, keys: str) -> str:
    return "".join(key for key in keys if cache.host_lookup(key.encode()))


def test_sizes() -> None:
    cache = EmbeddingCache(blocks=10, block_rows=4, row_bytes=100)
    assert (cache.capacity_rows, cache.device_bytes, cache.free_blocks) == (40, 4000, 10)
    entry = cache.reserve(b"a", 9).entry
    assert (entry.rows, len(entry.blocks), entry.state, entry.pins) == (9, 3, EmbeddingState.PENDING, 0)
    assert (cache.used_blocks, cache.free_blocks, cache.pinned_blocks, cache.evictable_blocks) == (3, 7, 0, 0)
    cache.pin(entry)
    assert cache.pinned_blocks == 3
    cache.mark_ready(entry)
    assert (cache.pinned_blocks, cache.evictable_blocks) == (3, 0)
    cache.unpin(entry)
    assert (cache.pinned_blocks, cache.evictable_blocks, cache.used_blocks) == (0, 3, 3)
    cache.check_integrity()


@pytest.mark.parametrize(("rows", "fits"), [(1, True), (40, True), (41, False)])
def test_fits(rows: int, fits: bool) -> None:
    cache = EmbeddingCache(10, 4, 100)
    cache.pin(ready(cache, b"a", 30))
    assert cache.fits(rows) == fits  # whatever is in it now


# Red if what is pinned or being encoded goes, or what is named, or blocks of what went stay taken.
def test_retain() -> None:
    cache = EmbeddingCache(10, 4, 100, host_bytes=4000)
    for key in (b"a", b"b"):
        ready(cache, key, 8)
    cache.pin(ready(cache, b"c", 4))
    cache.reserve(b"d", 4)
    cache.retain({b"b"})
    assert on_device(cache, "abcd") == "bcd" and not in_host(cache, "abcd")
    assert (cache.used_blocks, cache.evictable_blocks, cache.evictions) == (4, 2, 0)
    cache.check_integrity()


# Red if spare blocks are counted as rows, or if pinned or encoding entries count as room.
def test_can_reserve() -> None:
    cache = EmbeddingCache(10, 4, 100)
    ready(cache, b"evictable", 8)
    cache.pin(ready(cache, b"pinned", 8))
    cache.reserve(b"encoding", 8)
    assert cache.can_reserve(24) and not cache.can_reserve(25)
    assert cache.can_reserve(16, spare=2) and not cache.can_reserve(17, spare=2)
    with pytest.raises(AssertionError, match="25 rows do not fit"):
        cache.reserve(b"x", 25)


# Red if an entry's rows are taken to lie in one piece, or if a last block that is not full shifts them.
def test_row_slots() -> None:
    cache = EmbeddingCache(4, 4, 100)
    entries = [ready(cache, key, 4) for key in (b"a", b"b", b"c", b"d")]
    cache.pin(entries[1])
    entry = cache.reserve(b"e", 10).entry  # in the blocks of a, c and d
    assert sorted(entry.blocks) == sorted(entries[0].blocks + entries[2].blocks + entries[3].blocks)
    every = [block * 4 + offset for block in entry.blocks for offset in range(4)]
    assert cache.row_slots(entry, 0, 10).tolist() == every[:10]
    assert cache.row_slots(entry, 3, 6).tolist() == every[3:9]
    assert cache.row_slots(entry, 10, 0).tolist() == []
    assert cache.row_slots(entry, 0, 10).dtype == "int64"
    with pytest.raises(AssertionError, match="rows 5 to 11 of"):
        cache.row_slots(entry, 5, 6)


# Red if the order is that of reservation, or if a pin does not count as use.
def test_longest_unused_goes_first() -> None:
    cache = EmbeddingCache(3, 4, 100)
    first = ready(cache, b"a", 4)
    ready(cache, b"b", 4), ready(cache, b"c", 4)
    cache.pin(first), cache.unpin(first)
    cache.lookup(b"b")  # looking is not using
    ready(cache, b"d", 4)
    assert on_device(cache, "abcd") == "acd"
    ready(cache, b"e", 8)
    assert on_device(cache, "abcde") == "de"
    assert cache.evictions == 3


# Red if a pinned entry, or one being encoded, loses its blocks.
def test_what_is_needed_or_encoded_stays() -> None:
    cache = EmbeddingCache(3, 4, 100)
    pinned = ready(cache, b"p", 4)
    cache.pin(pinned), cache.pin(pinned)
    cache.unpin(pinned)
    cache.reserve(b"e", 4)
    ready(cache, b"r", 4)
    cache.reserve(b"x", 4)
    assert on_device(cache, "perx") == "pex"
    assert not cache.can_reserve(1)
    cache.unpin(pinned)
    cache.reserve(b"y", 4)
    assert on_device(cache, "perxy") == "exy"


def test_a_key_has_one_entry() -> None:
    cache = EmbeddingCache(3, 4, 100)
    cache.reserve(b"a", 4)
    with pytest.raises(AssertionError, match="on the device already"):
        cache.reserve(b"a", 4)


def test_unpinning_more_often_than_pinning() -> None:
    cache = EmbeddingCache(3, 4, 100)
    entry = ready(cache, b"a", 4)
    with pytest.raises(AssertionError, match="is not pinned"):
        cache.unpin(entry)


# Red if an evicted entry can be used: its blocks hold another image's rows.
def test_an_evicted_entry_is_dead() -> None:
    cache = EmbeddingCache(1, 4, 100)
    entry = ready(cache, b"a", 4)
    ready(cache, b"b", 4)
    with pytest.raises(AssertionError, match="no longer on the device"):
        cache.pin(entry)


def test_an_entry_becomes_ready_once() -> None:
    cache = EmbeddingCache(1, 4, 100)
    entry = ready(cache, b"a", 4)
    with pytest.raises(AssertionError, match="is not being encoded"):
        cache.mark_ready(entry)
    with pytest.raises(AssertionError, match="is not being encoded"):
        cache.abandon(entry)


# Red if a failed encode keeps its blocks or can still be found.
def test_abandon() -> None:
    cache = EmbeddingCache(3, 4, 100)
    entry = cache.reserve(b"a", 9).entry
    cache.pin(entry)
    with pytest.raises(AssertionError, match="abandoned while requests have it pinned"):
        cache.abandon(entry)
    cache.unpin(entry)
    cache.abandon(entry)
    cache.check_integrity()
    assert (cache.lookup(b"a"), cache.free_blocks) == (None, 3)
    assert len(cache.reserve(b"a", 9).entry.blocks) == 3


# Red if the pin that a reserve was made for counts as a hit, or if sharing an encode does not.
def test_hits_and_misses() -> None:
    cache = EmbeddingCache(3, 4, 100)
    entry = cache.reserve(b"a", 4).entry
    assert (cache.hits, cache.misses) == (0, 1)
    cache.pin(entry)  # who asked for it
    assert cache.hits == 0
    cache.pin(entry)  # shares the encode
    cache.mark_ready(entry)
    cache.pin(entry)
    assert (cache.hits, cache.misses) == (2, 1)


# ---- Host tier: entries of 4 rows take 400 bytes


def test_without_a_host_tier_the_evicted_are_dropped() -> None:
    cache = EmbeddingCache(1, 4, 100)
    ready(cache, b"a", 4)
    assert cache.reserve(b"b", 4).offloads == ()
    assert not cache.host_lookup(b"a")
    assert cache.host_evicted() == []


# Red if evicted rows are not copied out, come back as a miss, or are copied out again though they stayed in the host tier.
def test_out_to_the_host_and_back() -> None:
    cache = EmbeddingCache(1, 4, 100, host_bytes=800)
    first = ready(cache, b"a", 4)
    out = cache.reserve(b"b", 4)
    assert (out.offloads, out.from_host) == ((Offload(b"a", first.blocks, 4),), False)
    cache.mark_ready(out.entry)
    back = cache.reserve(b"a", 4)
    assert back.from_host and [offload.key for offload in back.offloads] == [b"b"]
    assert in_host(cache, "ab") == "ab"  # a stays
    cache.mark_ready(back.entry)
    assert cache.reserve(b"b", 4).offloads == ()  # a has its copy still
    assert (cache.misses, cache.host_hits, cache.evictions, cache.host_bytes_used) == (2, 2, 3, 800)
    assert cache.host_evicted() == []


# Red if the host tier grows past its bytes, drops in another order, or does not say what it dropped, once.
def test_the_host_tier_drops_its_longest_unused() -> None:
    cache = EmbeddingCache(1, 4, 100, host_bytes=800)
    for key in (b"a", b"b", b"c"):
        ready(cache, key, 4)
    assert in_host(cache, "abc") == "ab"
    ready(cache, b"a", 4)  # back, so used later than b; c goes out and takes b's place
    assert in_host(cache, "abc") == "ac"
    assert (cache.host_evicted(), cache.host_evicted(), cache.host_bytes_used) == ([b"b"], [], 800)


# Red if a long stay on the device makes a copy in the host tier old.
def test_a_copy_is_as_young_as_its_entry() -> None:
    cache = EmbeddingCache(2, 4, 100, host_bytes=800)
    for key in (b"a", b"x", b"y"):
        ready(cache, key, 4)  # a goes out
    kept = ready(cache, b"a", 4)  # a comes back, x goes out
    for key in (b"p", b"q"):  # y goes out and replaces x; then p does, if a is still young …
        cache.pin(kept), cache.unpin(kept)
        ready(cache, key, 4)
    ready(cache, b"r", 8)  # … and here a and q leave the device
    assert in_host(cache, "axypqr") == "aq"


# Red if rows too large for the host tier empty it.
def test_rows_too_large_for_the_host_tier_are_dropped() -> None:
    cache = EmbeddingCache(3, 4, 100, host_bytes=800)
    ready(cache, b"a", 4), ready(cache, b"L", 12)
    assert cache.reserve(b"b", 4).offloads == ()
    assert in_host(cache, "aL") == "a"


# Red if making room drops the copy that is being restored, at once or by a later reserve of the same step.
def test_what_is_being_restored_stays_in_the_host_tier() -> None:
    cache = EmbeddingCache(2, 4, 100, host_bytes=400)
    ready(cache, b"a", 4), ready(cache, b"b", 4), ready(cache, b"c", 4)
    assert in_host(cache, "abc") == "a"
    back = cache.reserve(b"a", 4)  # b goes out but there is no room beside a
    assert (back.from_host, back.offloads) == (True, ())
    assert cache.reserve(b"d", 4).offloads == ()  # nor for c
    assert (in_host(cache, "abc"), cache.host_evicted()) == ("a", [])
    cache.check_integrity()
    cache.mark_ready(back.entry)
    ready(cache, b"e", 4)
    assert in_host(cache, "abc") == "a"


# Red if an entry that goes out and is dropped for another one of the same reserve is still copied.
def test_no_copy_for_what_does_not_stay() -> None:
    cache = EmbeddingCache(2, 4, 100, host_bytes=400)
    ready(cache, b"a", 4), ready(cache, b"b", 4)
    assert [offload.key for offload in cache.reserve(b"c", 8).offloads] == [b"b"]
    assert (in_host(cache, "ab"), cache.host_evicted()) == ("b", [])


# Red if the storage is told to free what came back, or to copy what it never freed.
def test_dropped_and_back_before_the_storage_heard_of_it() -> None:
    cache = EmbeddingCache(1, 4, 100, host_bytes=400)
    for key in (b"a", b"b"):
        ready(cache, key, 4)  # a goes out
    back = ready(cache, b"a", 4)  # b is dropped
    assert back.from_host
    cache.clear()  # a too
    ready(cache, b"a", 4)
    assert cache.reserve(b"c", 4).offloads == ()  # a out again: the storage has it
    assert (in_host(cache, "ab"), cache.host_evicted()) == ("a", [])


# Red if a copy that could not be restored is tried again and again.
def test_a_failed_restore_drops_the_copy() -> None:
    cache = EmbeddingCache(1, 4, 100, host_bytes=400)
    ready(cache, b"a", 4), ready(cache, b"b", 4)
    back = cache.reserve(b"a", 4)
    cache.abandon(back.entry)
    assert (in_host(cache, "a"), cache.host_evicted(), cache.host_bytes_used) == ("", [b"a"], 0)
    assert not cache.reserve(b"a", 4).from_host


# Red if clear offloads, or drops what is pinned, encoded or being restored.
def test_clear() -> None:
    cache = EmbeddingCache(4, 4, 100, host_bytes=800)
    for key in (b"a", b"b", b"c", b"d", b"e", b"f"):
        ready(cache, key, 4)
    assert (on_device(cache, "abcdef"), in_host(cache, "abcdef")) == ("cdef", "ab")
    kept = cache.lookup(b"f")
    assert kept is not None
    cache.pin(kept)
    cache.reserve(b"a", 4)  # c goes out, b is dropped
    cache.clear()
    cache.check_integrity()
    assert (on_device(cache, "abcdef"), in_host(cache, "abcdef")) == ("af", "a")
    assert sorted(cache.host_evicted()) == [b"b", b"c"]
    assert cache.evictions == 3
