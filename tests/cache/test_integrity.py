"""The self-checks find what they promise to find: each test plants one fault in sound state."""

from collections import OrderedDict
from collections.abc import Callable

import pytest

from cache.paths import grow, keys_of, remember
from sightline.cache.embeddings import EmbeddingCache, EmbeddingState
from sightline.cache.pages import Node, PageCache


def sound_pages() -> PageCache:
    """Locked: a, ab. Unlocked, in this order: abc, abx, pq, p. Private: two. Free: the rest. States at ab (pinned) and pq."""
    cache = PageCache(16, 16, state_bytes_limit=100)
    held = grow(cache, "ab")
    remember(cache, "abc", "abx", "pq")
    cache.allocate(2)
    cache.attach_state(held[1], "AB", 10)
    cache.pin_state(held[1])
    cache.attach_state(node(cache, "pq"), "PQ", 20)
    cache.check_integrity()
    return cache


def node(cache: PageCache, word: str) -> Node:
    return cache.match(keys_of(word))[-1]


def move_parent_forward(cache: PageCache) -> None:
    cache._unlocked.move_to_end(node(cache, "pq"))
    node(cache, "pq").last_used = node(cache, "p").last_used


def begin(cache: PageCache, node: Node, before: bytes, count: int) -> None:
    cache.beginnings.add(node, before, b"begins", count)


PAGE_FAULTS: dict[str, tuple[Callable[[PageCache], object], str]] = {
    "scratch freed": (lambda c: c._use.__setitem__(0, 0), "page 0, and no other, is scratch"),
    "scratch in the free list": (lambda c: c._free.append(0), "page 0 is in the list of free pages but is not free"),
    "free twice": (lambda c: c._free.append(c._free[0]), "twice in the list"),
    "leaked": (lambda c: c._free.pop(), "not in the list of free pages"),
    "free and in the tree": (lambda c: c._free.append(node(c, "a").page), "is not free"),
    "in the tree as private": (lambda c: c._use.__setitem__(node(c, "a").page, 1), "not marked as part of the tree"),
    "in two nodes": (lambda c: setattr(node(c, "p"), "page", node(c, "a").page), "two nodes have the same page"),
    "node lost": (lambda c: c._nodes.pop(b"pq"), "no node has it"),
    "wrong key": (lambda c: setattr(node(c, "p"), "key", b"q"), "filed under another key"),
    "negative locks": (lambda c: setattr(node(c, "p"), "locks", -1), "negative number of locks"),
    "lock lost": (lambda c: setattr(node(c, "ab"), "locks", 0), "exactly the unlocked nodes"),
    "locked without its parent": (
        lambda c: setattr(node(c, "abc"), "locks", 2),
        "locked less often than its children, 2 times",
    ),
    "wrong depth": (lambda c: setattr(node(c, "ab"), "depth", 2), "wrong depth"),
    "parent not in the tree": (lambda c: setattr(node(c, "pq"), "parent", Node(1, b"x", None)), "is not in the tree"),
    "wrong parent": (lambda c: setattr(node(c, "pq"), "parent", node(c, "a")), "has 2 children"),
    "children miscounted": (lambda c: setattr(node(c, "ab"), "children", 1), "has 2 children"),
    "not in the queue": (lambda c: c._unlocked.popitem(), "exactly the unlocked nodes"),
    "locked but in the queue": (lambda c: c._unlocked.update({node(c, "a"): None}), "exactly the unlocked nodes"),
    "queue out of order": (lambda c: c._unlocked.move_to_end(node(c, "abc")), "before one used earlier"),
    "used in the future": (lambda c: setattr(node(c, "p"), "last_used", 10**9), "before one used earlier"),
    "parent before child": (move_parent_forward, "would be forgotten before it"),
    "state bytes": (lambda c: setattr(c._states, "bytes_used", 31), "states take 30 bytes, 31 are counted"),
    "pinned bytes": (lambda c: setattr(c._states, "_pinned_bytes", 0), "pinned states take 10 bytes, 0 are counted"),
    "states above the limit": (lambda c: setattr(c._states, "bytes_limit", 29), "30 bytes, 29 are allowed"),
    "state not in its queue": (lambda c: c._states._idle.clear(), "exactly the unpinned states"),
    "pinned state in the queue": (lambda c: c._states._idle.update({node(c, "ab"): None}), "exactly the unpinned states"),
    "state lost": (lambda c: setattr(node(c, "pq"), "state", None), "exactly the unpinned states"),
    "beginning of a page that is gone": (lambda c: begin(c, Node(1, b"x", None), b"", 3), "which is not in the tree"),
    "beginning of a whole page": (lambda c: begin(c, node(c, "p"), b"", 16), "16 tokens of a page of 16"),
    "beginning behind another page": (lambda c: begin(c, node(c, "pq"), b"", 3), "does not follow that page"),
    "beginning that would outlive its page": (
        lambda c: (begin(c, node(c, "p"), b"", 3), setattr(node(c, "p"), "begins", ())),
        "would outlive it",
    ),
    "lengths miscounted": (lambda c: (begin(c, node(c, "p"), b"", 3), c.beginnings._counts.clear()), "are miscounted"),
    "negative state pins": (lambda c: setattr(node(c, "pq").state, "pins", -1), "negative number of pins"),
}


@pytest.mark.parametrize("fault", PAGE_FAULTS)
def test_faults_in_the_state_of_pages_are_found(fault: str) -> None:
    plant, sentence = PAGE_FAULTS[fault]
    cache = sound_pages()
    plant(cache)
    with pytest.raises(AssertionError, match=sentence):
        cache.check_integrity()


# Red if a state may be pinned at a node that can be evicted.
def test_a_pinned_state_at_an_unlocked_node_is_found() -> None:
    cache = sound_pages()
    cache._states.pin(node(cache, "pq"))
    with pytest.raises(AssertionError, match="has a pinned state but is not locked"):
        cache.check_integrity()


def sound_embeddings() -> EmbeddingCache:
    """On the device: p (pinned), r, s (ready, in this order), h (being restored). In the host tier: h, o. One block is free."""
    cache = EmbeddingCache(8, 4, 10, host_bytes=100)
    for key, rows in [(b"h", 4), (b"o", 4), (b"x", 29)]:
        cache.mark_ready(cache.reserve(key, rows).entry)
    for key, rows in [(b"p", 9), (b"r", 8), (b"s", 4)]:
        cache.mark_ready(cache.reserve(key, rows).entry)
    pinned = cache.lookup(b"p")
    assert pinned is not None
    cache.pin(pinned)
    assert cache.reserve(b"h", 4).from_host
    cache.host_evicted()
    cache.check_integrity()
    return cache


def entry_field(key: bytes, name: str, value: object) -> Callable[[EmbeddingCache], object]:
    return lambda cache: setattr(cache._entries[key], name, value)


EMBEDDING_FAULTS: dict[str, tuple[Callable[[EmbeddingCache], object], str]] = {
    "block leaked": (lambda c: c._free.pop(), "exactly one entry or the free ones"),
    "block free twice": (lambda c: c._free.append(c._free[0]), "exactly one entry or the free ones"),
    "block of two entries": (lambda c: entry_field(b"s", "blocks", c._entries[b"h"].blocks)(c), "exactly one entry"),
    "wrong key": (entry_field(b"s", "key", b"t"), "filed under another key"),
    "more rows than blocks": (entry_field(b"s", "rows", 5), "wrong number of blocks"),
    "negative pins": (entry_field(b"s", "pins", -1), "negative number of pins"),
    "pin lost": (entry_field(b"p", "pins", 0), "0 blocks are pinned, 3 are counted"),
    "pinned blocks": (lambda c: setattr(c, "_pinned_blocks", 2), "3 blocks are pinned, 2 are counted"),
    "evictable while encoding": (entry_field(b"s", "state", EmbeddingState.PENDING), "unpinned entries that are ready"),
    "not in the queue": (lambda c: c._evictable.popitem(), "unpinned entries that are ready"),
    "evictable blocks": (lambda c: setattr(c, "_evictable_blocks", 4), "3 blocks can be evicted, 4 are counted"),
    "queue out of order": (lambda c: c._evictable.move_to_end(b"r"), "before one used earlier"),
    "host bytes": (lambda c: setattr(c._host, "bytes_used", 81), "has 80 bytes, 81 are counted"),
    "host bytes held": (lambda c: setattr(c._host, "_held_bytes", 0), "40 bytes of the host tier are held, 0 are counted"),
    "host above its limit": (lambda c: setattr(c._host, "bytes_limit", 79), "has 80 bytes, 79 are allowed"),
    "host key in no queue": (lambda c: c._host._idle.clear(), "neither held nor in the queue"),
    "host key in no queue, another instead": (
        lambda c: setattr(c._host, "_idle", OrderedDict({b"z": None})),
        "neither held nor in the queue",
    ),
    "held key in the queue": (lambda c: c._host._idle.update({b"h": None}), "a held key of the host tier is in the queue"),
    "host key reported as dropped": (lambda c: c._host._dropped.update({b"o": None}), "also reported as dropped"),
}


@pytest.mark.parametrize("fault", EMBEDDING_FAULTS)
def test_faults_in_the_state_of_embeddings_are_found(fault: str) -> None:
    plant, sentence = EMBEDDING_FAULTS[fault]
    cache = sound_embeddings()
    plant(cache)
    with pytest.raises(AssertionError, match=sentence):
        cache.check_integrity()
