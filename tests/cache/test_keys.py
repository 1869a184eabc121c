"""Keys of pages: equal exactly if everything that the page's numbers depend on is equal."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.cache import keys as keys_module
from sightline.cache.keys import page_key, page_keys, root_key
from sightline.types import MediaSpan

ROOT = root_key()
CAT, DOG = bytes(range(32)), bytes(range(1, 33))
IDS = [5, 6, 7, 7, 7, 7, 8, 9]


def slow_page_keys(
    token_ids: list[int], spans: list[MediaSpan], item_keys: list[bytes], page_size: int, root: bytes
) -> list[bytes]:
    """Each token looks through all spans for its row; runs are put together token by token."""
    keys, parent, before = [], root, None
    for page in range(len(token_ids) // page_size):
        begin, end = page * page_size, (page + 1) * page_size
        around = next((span for span in spans if span.start <= begin and end < span.start + span.count), None)
        if around is not None and around is before:
            parent = parent[:28] + (int.from_bytes(parent[28:], "little") + 1).to_bytes(4, "little")
            keys.append(parent)
            continue
        before = around
        runs: list[tuple[int, bytes, int, int]] = []
        last_span = None
        for offset in range(page_size):
            token = page * page_size + offset
            span = next((span for span in spans if span.start <= token < span.start + span.count), None)
            if span is not None and span is last_span:
                start, key, row, count = runs[-1]
                runs[-1] = (start, key, row, count + 1)
            elif span is not None:
                runs.append((offset, item_keys[span.item], span.row + token - span.start, 1))
            last_span = span
        parent = page_key(parent, token_ids[begin:end], runs)
        if around is not None:
            parent = parent[:28] + bytes(4)
        keys.append(parent)
    return keys


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[MediaSpan], list[bytes]]:
    """Ids, spans with gaps of zero or more tokens between them, and item keys; a span may be empty."""
    spans: list[MediaSpan] = []
    end = 0
    for gap, count, item, row in draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 2), st.integers(0, 50)), max_size=6)
    ):
        spans.append(MediaSpan(item, end + gap, count, row))
        end += gap + count
    length = end + draw(st.integers(0, 12))
    return [(7 * i) % 11 for i in range(length)], spans, [CAT, DOG, CAT[::-1]]


# Red if a span is lost or met twice at a page boundary, or if rows are counted from the page instead of the span.
@settings(max_examples=500, deadline=None)
@given(prompts(), st.integers(1, 9))
def test_all_pages_against_a_slow_walk(prompt: tuple[list[int], list[MediaSpan], list[bytes]], page_size: int) -> None:
    ids, spans, item_keys = prompt
    assert page_keys(ids, spans, item_keys, page_size, ROOT) == slow_page_keys(ids, spans, item_keys, page_size, ROOT)


# Red if the first span of an extension is searched wrongly, or if offsets count from the extension's start.
@settings(max_examples=500, deadline=None)
@given(prompts(), st.integers(1, 9), st.lists(st.integers(0, 90), max_size=4))
def test_keys_do_not_depend_on_how_a_sequence_grew(
    prompt: tuple[list[int], list[MediaSpan], list[bytes]], page_size: int, lengths: list[int]
) -> None:
    ids, spans, item_keys = prompt
    grown: list[bytes] = []
    for length in [*sorted(min(length, len(ids)) for length in lengths), len(ids)]:
        parent = grown[-1] if grown else None
        part = np.array(ids[:length], np.int32)
        grown += page_keys(part, spans, item_keys, page_size, ROOT, first_page=len(grown), parent=parent)
    assert grown == page_keys(ids, spans, item_keys, page_size, ROOT)


# Red if any part of a page is left out of its key, or if two parts run into each other.
def test_a_key_changes_with_everything_that_it_stands_for() -> None:
    variants = [
        page_key(ROOT, IDS, [(2, CAT, 0, 4)]),
        page_key(root_key("tenant"), IDS, [(2, CAT, 0, 4)]),  # salt
        page_key(page_key(ROOT, IDS, []), IDS, [(2, CAT, 0, 4)]),  # what comes before
        page_key(ROOT, [*IDS[:-1], 10], [(2, CAT, 0, 4)]),  # a token
        page_key(ROOT, IDS[::-1], [(2, CAT, 0, 4)]),  # order of tokens
        page_key(ROOT, IDS[:-1], [(2, CAT, 0, 4)]),  # number of tokens
        page_key(ROOT, IDS, []),  # no image
        page_key(ROOT, IDS, [(2, DOG, 0, 4)]),  # another image
        page_key(ROOT, IDS, [(3, CAT, 0, 4)]),  # elsewhere
        page_key(ROOT, IDS, [(2, CAT, 1, 4)]),  # other rows
        page_key(ROOT, IDS, [(2, CAT, 0, 3)]),  # fewer rows
        page_key(ROOT, IDS, [(2, CAT, 0, 2), (4, CAT, 0, 2)]),  # the first rows twice
        page_key(ROOT, IDS, [(2, CAT, 0, 2), (4, DOG, 0, 2)]),
        page_key(ROOT, IDS, [(2, DOG, 0, 2), (4, CAT, 0, 2)]),
    ]
    assert len(set(variants)) == len(variants)
    assert {len(key) for key in variants} == {32}


# Red if the number of ids is not hashed: the bytes of a run could then be taken for those of tokens.
def test_tokens_that_look_like_a_run_are_not_one() -> None:
    run = (2).to_bytes(4, "little") + CAT + (0).to_bytes(4, "little") + (4).to_bytes(4, "little")
    disguised = np.frombuffer(run, np.int32)
    assert page_key(ROOT, [*IDS, *disguised.tolist()], []) != page_key(ROOT, IDS, [(2, CAT, 0, 4)])


# Red if roots and pages are hashed alike: a salt could then name another tenant's page as its root.
def test_no_salt_gives_the_key_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    class Spy:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def update(self, data: bytes) -> None:
            self.data += data

        def digest(self) -> bytes:
            hashed.append(self.data)
            return bytes(32)

    monkeypatch.setattr(keys_module, "sha256", Spy)
    root_key(b""), page_key(ROOT, IDS, [])
    assert not hashed[1].startswith(hashed[0])


# Red if text and bytes are salted apart, or if the salt is not used.
def test_salts() -> None:
    assert root_key("ä") == root_key("ä".encode()) != root_key("a") != root_key() == root_key(b"")


# Red if ids are hashed in their own dtype: a prompt as array and a grown one as list would share nothing.
def test_ids_may_be_a_list_or_an_array() -> None:
    assert page_key(ROOT, IDS, []) == page_key(ROOT, np.array(IDS, np.int32), [])
    ids = np.arange(100, dtype=np.int32)
    assert page_keys(ids, [], [], 16, ROOT) == page_keys(ids.tolist(), [], [], 16, ROOT)
    assert page_keys(np.arange(200, dtype=np.int32)[::2], [], [], 16, ROOT) == page_keys(ids * 2, [], [], 16, ROOT)


# Red if the search for the first span starts at the beginning for each page: this would be 10⁹ comparisons.
def test_work_does_not_multiply_pages_by_spans() -> None:
    spans = [MediaSpan(0, 3 * i, 2, 2 * i) for i in range(30_000)]
    assert len(page_keys(np.zeros(90_000, np.int32), spans, [CAT], 3, ROOT)) == 30_000


# Red if another length is hashed as if it were a key: two texts could then be cut in different places and read alike.
@pytest.mark.parametrize("wrong", [b"", CAT[:31], CAT + b"x"])
def test_keys_of_a_wrong_length_are_refused(wrong: bytes) -> None:
    with pytest.raises(AssertionError, match=re.escape(f"this one has {len(wrong)}")):
        page_key(wrong, IDS, [])
    with pytest.raises(AssertionError, match=re.escape(f"this one has {len(wrong)}")):
        page_key(ROOT, IDS, [(0, wrong, 0, 1)])


def test_a_later_page_needs_the_key_before_it() -> None:
    with pytest.raises(AssertionError, match="page 1 needs the key of the page before it"):
        page_keys(IDS, [], [], 4, ROOT, first_page=1)
    with pytest.raises(AssertionError, match="no parent but the root"):
        page_keys(IDS, [], [], 4, ROOT, first_page=0, parent=CAT)


# Red if pages inside an item are alike, whatever comes before them, wherever they are in it, and whichever it is.
def test_pages_inside_items_differ() -> None:
    def keys(text: int, item: int, row: int) -> list[bytes]:
        return page_keys([text, *[7] * 99], [MediaSpan(item, 1, 99, row)], [CAT, DOG], 4, ROOT)

    every = [*keys(1, 0, 0), *keys(2, 0, 0), *keys(1, 1, 0), *keys(1, 0, 4)]
    assert len(set(every)) == len(every) == 100
    assert {len(key) for key in every} == {32}


# Red if equal prompts get unequal keys, or if one changed token leaves any later page's key as it was.
def test_a_change_spoils_its_page_and_all_later_ones() -> None:
    shuffled = random.Random(1)
    ids = [shuffled.randrange(1000) for _ in range(64)]
    before = page_keys(ids, [], [], 8, ROOT)
    ids[29] += 1
    after = page_keys(ids, [], [], 8, ROOT)
    assert [old == new for old, new in zip(before, after, strict=True)] == [True] * 3 + [False] * 5
