"""State snapshots in the prefix tree, for families whose layers are partly recurrent."""

from dataclasses import dataclass, field

import pytest

from cache.paths import grow, keys_of, known, remember
from sightline.cache.pages import Node, PageCache


@dataclass
class Released:
    handles: list[object] = field(default_factory=list)

    def __call__(self, handle: object) -> None:
        self.handles.append(handle)


def cache_with(limit: int, pages: int = 12) -> tuple[PageCache, Released]:
    released = Released()
    return PageCache(pages, 16, limit, released), released


def at(cache: PageCache, word: str) -> Node:
    return cache.match(keys_of(word))[-1]


# ---- A family that needs its state

EVERY = 2  # the family below keeps a snapshot at each second page


def checksum(word: str) -> int:
    """The recurrent state after a word: like a real one, it can be continued from but not cut back."""
    state = 0
    for letter in word:
        state = (state * 31 + ord(letter)) % 1_000_003
    return state


def run_recurrent(cache: PageCache, word: str) -> int:
    """Serves a word as a hybrid family does. Returns how many pages were computed; checks the state at the end."""
    keys = keys_of(word)
    nodes = cache.match(keys, need_state=True)
    cache.lock(nodes)
    state, done = 0, len(nodes)
    if nodes:
        state = cache.pin_state(nodes[-1])
        cache.unpin_state(nodes[-1])
    for index in range(done, len(word)):
        state = (state * 31 + ord(word[index])) % 1_000_003
        nodes.append(cache.insert(nodes[-1] if nodes else None, keys[index], cache.allocate(1)[0]))
        if (index + 1) % EVERY == 0:
            cache.attach_state(nodes[-1], state, nbytes=100)
        cache.check_integrity()
    assert state == checksum(word)
    cache.unlock(nodes)
    return len(word) - done


# Red if a match ends at a page without a state (the checksum is then wrong), or misses the last one that has a state.
def test_a_family_with_states_goes_on_from_the_longest_prefix_that_has_one() -> None:
    cache, released = cache_with(1000, pages=30)
    assert run_recurrent(cache, "abcde") == 5
    assert run_recurrent(cache, "abcde") == 1  # pages a … e are known, the last state is at d
    assert run_recurrent(cache, "abcxy") == 3  # c is known but has no state: on from b
    assert run_recurrent(cache, "abcxyz") == 2  # on from x
    assert run_recurrent(cache, "axy") == 3  # a is known but no state is that early
    assert released.handles == []


# Red if a state stays behind without its page or a handle leaks when both pages and states are short.
def test_a_family_with_states_in_little_memory() -> None:
    cache, released = cache_with(350, pages=9)
    for word in ["abcdef", "abcdxy", "pqrs", "abcdef", "pqrstu", "ab", "abcdefgh"] * 3:
        run_recurrent(cache, word)
    cache.clear()
    assert cache.state_bytes == 0
    assert len(released.handles) > 20


# ---- One rule at a time


def test_match_with_and_without_states() -> None:
    cache, _ = cache_with(100)
    remember(cache, "abcd")
    assert cache.match(keys_of("abcd"), need_state=True) == []
    assert cache.attach_state(at(cache, "ab"), "at b", 10)
    assert cache.match(keys_of("abcd"), need_state=True) == cache.match(keys_of("ab"))
    assert len(cache.match(keys_of("abcd"))) == 4
    assert cache.match(keys_of("a"), need_state=True) == []


# Red if states are evicted in another order, if pinning does not count as use, or if the page goes with the state.
def test_a_state_goes_before_its_page() -> None:
    cache, released = cache_with(30)
    held = grow(cache, "abcd")  # locks do not keep states
    for node, handle in zip(held[:3], "ABC", strict=True):
        assert cache.attach_state(node, handle, 10)
    assert cache.pin_state(held[0]) == "A"
    cache.unpin_state(held[0])
    assert cache.attach_state(held[3], "D", 20)
    assert released.handles == ["B", "C"]
    assert known(cache, "abcd") == ["abcd"]
    assert (cache.state_bytes, cache.state_evictions, cache.evictions) == (30, 2, 0)
    cache.check_integrity()


# Red if a page's state outlives it, or is released twice.
def test_a_state_goes_with_its_page() -> None:
    cache, released = cache_with(100, pages=3)
    remember(cache, "ab")
    cache.attach_state(at(cache, "ab"), "B", 10)
    cache.allocate(1)
    assert (released.handles, cache.state_bytes) == (["B"], 0)
    cache.allocate(1)
    cache.clear()
    assert released.handles == ["B"]


# Red if room is made by dropping a pinned state, or if unpinned ones are dropped for nothing.
def test_a_state_that_cannot_fit_changes_nothing() -> None:
    cache, released = cache_with(30)
    nodes = grow(cache, "abc")
    assert not cache.attach_state(nodes[0], "large", 31)
    assert cache.attach_state(nodes[0], "A", 20) and cache.attach_state(nodes[1], "B", 10)
    cache.pin_state(nodes[0])
    assert not cache.attach_state(nodes[2], "C", 11)
    assert (released.handles, cache.state_bytes) == ([], 30)
    assert cache.attach_state(nodes[2], "C", 10)
    assert released.handles == ["B"]
    cache.check_integrity()


# Red if the second handle replaces the first, or is released though the caller still has it.
def test_the_first_state_stays() -> None:
    cache, released = cache_with(30)
    nodes = grow(cache, "a")
    assert cache.attach_state(nodes[0], "first", 10)
    assert not cache.attach_state(nodes[0], "second", 10)
    assert (cache.pin_state(nodes[0]), released.handles) == ("first", [])


def test_without_a_budget_there_are_no_states() -> None:
    cache = PageCache(4, 16)
    assert not cache.attach_state(grow(cache, "a")[0], "A", 1)


def test_pins_are_counted() -> None:
    cache, _ = cache_with(10)
    nodes = grow(cache, "ab")
    cache.attach_state(nodes[0], "A", 10)
    cache.pin_state(nodes[0]), cache.pin_state(nodes[0])
    cache.unpin_state(nodes[0])
    assert not cache.attach_state(nodes[1], "B", 10)
    cache.unpin_state(nodes[0])
    with pytest.raises(AssertionError, match="is not pinned"):
        cache.unpin_state(nodes[0])
    assert cache.attach_state(nodes[1], "B", 10)
    with pytest.raises(AssertionError, match="has no state to pin"):
        cache.pin_state(nodes[0])


# Red if a state that is being read can lose its page.
def test_a_pinned_state_needs_a_locked_page() -> None:
    cache, _ = cache_with(10)
    nodes = grow(cache, "a")
    cache.attach_state(nodes[0], "A", 10)
    cache.pin_state(nodes[0])
    with pytest.raises(AssertionError, match="is unlocked while its state is pinned"):
        cache.unlock(nodes)
    cache, _ = cache_with(10)
    remember(cache, "a")
    cache.attach_state(at(cache, "a"), "A", 10)
    with pytest.raises(AssertionError, match="must be locked"):
        cache.pin_state(at(cache, "a"))


def test_an_evicted_page_takes_no_state() -> None:
    cache, _ = cache_with(10, pages=2)
    remember(cache, "a")
    node = at(cache, "a")
    cache.allocate(1)
    with pytest.raises(AssertionError, match="no longer in the tree"):
        cache.attach_state(node, "A", 1)


# Red if clear leaves unpinned states on locked pages, or drops a pinned one.
def test_clear_drops_all_states_that_nobody_reads() -> None:
    cache, released = cache_with(100)
    nodes = grow(cache, "ab")
    remember(cache, "x")
    for node, handle in [(nodes[0], "A"), (nodes[1], "B"), (at(cache, "x"), "X")]:
        cache.attach_state(node, handle, 10)
    cache.pin_state(nodes[1])
    cache.clear()
    cache.check_integrity()
    assert sorted(map(str, released.handles)) == ["A", "X"]
    assert (known(cache, "ab", "x"), cache.state_bytes) == (["ab", ""], 10)
