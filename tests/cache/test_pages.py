"""Pages and the prefix tree, one rule at a time. test_pages_model.py has them all together."""

import time

import pytest

from cache.paths import grow, keys_of, known, remember
from sightline.cache.keys import page_keys, root_key
from sightline.cache.pages import PageCache
from sightline.types import MediaSpan


# Red if page 0 is handed out, a page is handed out twice, or counts do not follow.
def test_every_page_but_scratch_is_handed_out_once() -> None:
    cache = PageCache(8, 16)
    assert (cache.usable_pages, cache.free_pages, cache.available_pages, cache.private_pages) == (7, 7, 7, 0)
    pages = cache.allocate(3) + cache.allocate(0) + cache.allocate(4)
    assert sorted(pages) == list(range(1, 8))
    assert (cache.free_pages, cache.available_pages, cache.private_pages) == (0, 0, 7)
    cache.check_integrity()


def test_more_pages_than_there_are() -> None:
    cache = PageCache(4, 16)
    cache.allocate(2)
    with pytest.raises(AssertionError, match="2 pages are asked for, 1 can be had"):
        cache.allocate(2)


def test_double_free() -> None:
    cache = PageCache(4, 16)
    pages = cache.allocate(2)
    cache.free(pages[:1])
    with pytest.raises(AssertionError, match=f"page {pages[0]} is not private"):
        cache.free(pages)


@pytest.mark.parametrize("what", ["scratch", "free", "in the tree"])
def test_only_private_pages_can_be_freed_or_inserted(what: str) -> None:
    cache = PageCache(4, 16)
    page = {"scratch": 0, "free": cache.allocate(1)[0], "in the tree": grow(cache, "a")[0].page}[what]
    if what == "free":
        cache.free([page])
    with pytest.raises(AssertionError, match=f"page {page} is not private"):
        cache.free([page])
    with pytest.raises(AssertionError, match=f"page {page} is not private"):
        cache.insert(None, b"new", page)


# Red if a match stops early, goes past a gap, or locks.
def test_match_gives_the_longest_known_prefix() -> None:
    cache = PageCache(10, 16)
    remember(cache, "abcd", "abx")
    assert known(cache, "abcdef", "abxd", "bcd", "") == ["abcd", "abx", "", ""]
    nodes = cache.match(keys_of("abx"))
    assert [node.depth for node in nodes] == [0, 1, 2]
    assert [node.parent for node in nodes] == [None, *nodes[:2]]
    assert [node.locks for node in nodes] == [0, 0, 0]
    assert cache.available_pages == cache.usable_pages


# Red if the order is that of insertion, or if using a prefix does not refresh it.
def test_longest_unused_goes_first() -> None:
    cache = PageCache(5, 16)
    remember(cache, "a", "b", "c", "d")
    remember(cache, "a")  # used again
    cache.allocate(1)
    assert known(cache, "a", "b", "c", "d") == ["a", "", "c", "d"]
    cache.allocate(2)
    assert known(cache, "a", "b", "c", "d") == ["a", "", "", ""]
    assert cache.evictions == 3


# Red if a match alone refreshes: a queue of waiting requests that look would then decide what stays.
def test_looking_is_not_using() -> None:
    cache = PageCache(3, 16)
    remember(cache, "a", "b")
    cache.match(keys_of("a"))
    cache.allocate(1)
    assert known(cache, "a", "b") == ["", "b"]


# Red if a page goes before those that continue it, or if a parent used through one child keeps another child alive.
def test_leaves_go_before_their_parents() -> None:
    cache = PageCache(7, 16)
    remember(cache, "abc", "abx", "pq")  # 4 + 2 pages
    evicted = []
    for _ in range(6):
        before = set(known(cache, "abc", "abx", "pq"))
        cache.allocate(1)
        cache.check_integrity()
        after = set(known(cache, "abc", "abx", "pq"))
        evicted.append(", ".join(sorted(before - after)))
    assert evicted == ["abc", "abx", "ab", "a", "pq", "p"]


# Red if a prefix ages with its oldest continuation.
def test_a_prefix_is_as_young_as_its_last_use() -> None:
    cache = PageCache(6, 16)
    remember(cache, "ab", "x", "y", "a")  # "a" is used last, "ab" first
    cache.allocate(2)  # one is free
    assert known(cache, "ab", "x", "y") == ["a", "x", "y"]
    cache.allocate(2)
    assert known(cache, "ab", "x", "y") == ["a", "", ""]


# Red if locks are ignored, or if locked pages count as available.
def test_locked_pages_are_never_taken() -> None:
    cache = PageCache(6, 16)
    held = grow(cache, "ab")
    remember(cache, "abc", "z")
    assert (cache.free_pages, cache.available_pages) == (1, 3)
    cache.allocate(3)
    assert known(cache, "abc", "z") == ["ab", ""]
    with pytest.raises(AssertionError, match="1 pages are asked for, 0 can be had"):
        cache.allocate(1)
    cache.unlock(held)
    assert cache.available_pages == 2
    cache.allocate(2)
    assert known(cache, "abc") == [""]


# Red if the first unlock makes a shared prefix evictable.
def test_locks_count() -> None:
    cache = PageCache(3, 16)
    first, second = grow(cache, "ab"), grow(cache, "ab")
    assert first == second and [node.locks for node in first] == [2, 2]
    cache.unlock(first)
    assert cache.available_pages == 0
    cache.unlock(second)
    assert cache.available_pages == 2


def test_unlocking_more_often_than_locking() -> None:
    cache = PageCache(3, 16)
    nodes = grow(cache, "a")
    cache.unlock(nodes)
    with pytest.raises(AssertionError, match="is not locked"):
        cache.unlock(nodes)


# Red if the tree forgets that a node was evicted: its page belongs to someone else by then.
def test_a_node_found_before_an_eviction_cannot_be_locked_after_it() -> None:
    cache = PageCache(2, 16)
    remember(cache, "a")
    found = cache.match(keys_of("a"))
    cache.allocate(1)
    with pytest.raises(AssertionError, match="no longer in the tree"):
        cache.lock(found)


# Red if two nodes get the same key, or if the page that lost the race is never freed.
def test_insert_of_a_known_key_gives_the_known_node() -> None:
    cache = PageCache(5, 16)
    first = grow(cache, "a")
    fast, slow = cache.allocate(2)
    node = cache.insert(first[0], b"ab", fast)
    cache.lock(first)  # the second sequence
    assert cache.insert(first[0], b"ab", slow) is node
    assert (node.page, node.locks) == (fast, 2)
    assert (cache.free_pages, cache.private_pages) == (2, 0)
    cache.check_integrity()


# Red if a sequence may insert under a path that it does not hold: the parent could then be evicted under it.
def test_insert_needs_a_held_parent() -> None:
    cache = PageCache(5, 16)
    nodes = grow(cache, "a")
    cache.unlock(nodes)
    with pytest.raises(AssertionError, match="locked more often than its parent"):
        cache.insert(nodes[0], b"ab", cache.allocate(1)[0])


def test_a_gap_in_a_locked_path() -> None:
    cache = PageCache(5, 16)
    remember(cache, "abc")
    with pytest.raises(AssertionError, match="locked more often than its parent"):
        cache.lock(cache.match(keys_of("abc"))[1:])


# Red if giving up the end of a path gives up its beginning, or ages the end wrongly.
def test_the_end_of_a_path_can_be_given_up_alone() -> None:
    cache = PageCache(5, 16)
    nodes = grow(cache, "abc")
    cache.unlock(nodes[2:])
    cache.check_integrity()
    assert cache.available_pages == 2
    cache.allocate(2)
    assert known(cache, "abc") == ["ab"]
    cache.unlock(nodes[:2])
    cache.check_integrity()


# Red if clear touches what a running sequence uses, or forgets less than everything else.
def test_clear() -> None:
    cache = PageCache(9, 16)
    held = grow(cache, "ab")
    remember(cache, "abc", "x", "yz")
    private = cache.allocate(1)
    cache.clear()
    cache.check_integrity()
    assert known(cache, "abc", "x", "yz") == ["ab", "", ""]
    assert (cache.free_pages, cache.private_pages, cache.evictions) == (5, 1, 0)
    cache.free(private)
    cache.unlock(held)
    cache.clear()
    assert cache.free_pages == cache.usable_pages


def test_counters() -> None:
    cache = PageCache(4, 16)
    remember(cache, "abc")
    assert (cache.hits, cache.evictions) == (0, 0)
    remember(cache, "ab")
    assert (cache.hits, cache.evictions) == (2, 0)
    remember(cache, "x")
    assert (cache.hits, cache.evictions) == (2, 1)


# Red if allocation, eviction or availability looks at all pages: 200,000 operations on 100,000 pages would take minutes.
def test_cost_does_not_grow_with_the_cache() -> None:
    cache = PageCache(100_001, 16)
    for start in range(0, 100_000, 1000):
        parent, path = None, []
        for index, page in enumerate(cache.allocate(1000)):
            parent = cache.insert(parent, b"%d/%d" % (start, index), page)
            path.append(parent)
        cache.unlock(path)
    begin = time.perf_counter()
    for _ in range(100_000):
        cache.allocate(1)
    assert cache.evictions == 100_000
    assert time.perf_counter() - begin < 5


# Red if rows are not part of a page's key, or only whole images are.
def test_a_match_may_end_inside_an_image() -> None:
    cat, dog = bytes(32), bytes(31) + b"!"

    def keys(item: bytes, row: int, text: int) -> list[bytes]:
        """Three tokens of text, 20 rows of an image, text: | ttt vvvvv | vvvvvvvv | vvvvvvv t | tttttttt |"""
        ids = [1, 2, 3, *[99] * 20, *[text] * 9]
        return page_keys(ids, [MediaSpan(0, 3, 20, row)], [item], 8, root_key())

    cache = PageCache(9, 8)
    parent = None
    for key in keys(cat, 0, text=5):
        parent = cache.insert(parent, key, cache.allocate(1)[0])
    assert len(cache.match(keys(cat, 0, text=5))) == 4
    assert len(cache.match(keys(cat, 0, text=6))) == 2  # 16 tokens: the first 13 of 20 rows
    assert len(cache.match(keys(cat, 1, text=5))) == 0
    assert len(cache.match(keys(dog, 0, text=5))) == 0
