"""The identity of a page of keys and values: everything that its numbers depend on, in 32 bytes.

A page's keys and values follow from all tokens up to its end and, where a token stands for an embedding row, from that row.
So a page's key hashes the key of the page before it, the page's token ids, and for each run of vision rows which rows of which
item:

    tokens   t t t v v v v v | v v v t t t t t |       page_size 8, an item of 8 rows at token 3
    page 0   parent = root,  ids,  runs (3, item, 0, 5)
    page 1   parent = key 0, ids,  runs (0, item, 5, 3)

Most pages of a long prompt lie inside an item, with no end of it in sight, and follow from the page before: these are not
hashed but counted. The first such page has 28 bytes of its hash and a 0, the next ones the same 28 bytes and 1, 2, …

Equal keys mean equal pages, and a page's key implies those of all pages before it. Placeholder ids alone would not do: they are
the same for every image. Nobody can find two prompts with the same 28 bytes.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from sightline.types import MediaSpan

KEY_BYTES = 32

VisionRun = tuple[int, bytes, int, int]  # offset in the page, key of the item, its first row here, rows

# Different first bytes keep what is hashed for a root, a page and an item apart, whatever a salt contains.
_ITEM = b"sightline item\0"
_ROOT = b"sightline root\0"
_PAGE = b"sightline page\0"
_COUNT = struct.Struct("<I")
_RUN = struct.Struct("<I32sII")
_SEED_BYTES = KEY_BYTES - _COUNT.size  # of the key of a page inside an item; the rest is a number


def root_key(salt: str | bytes = b"") -> bytes:
    """The key before the first page. Requests with different salts share no page."""
    return sha256(_ROOT + (salt.encode() if isinstance(salt, str) else salt)).digest()


def embedding_key(item_key: bytes, decoder: str) -> bytes:
    """The key of an item's embeddings, and of what it is in a page: MediaItem.key, and which decoder makes its pixels.

    Decoders differ in the last bits of pixels, so embeddings of one must not be found under the name of another, nor pages that
    follow from them.
    """
    return sha256(_ITEM + item_key + decoder.encode()).digest()


def page_key(parent: bytes, token_ids: Sequence[int] | NDArray[np.int32], vision: Sequence[VisionRun]) -> bytes:
    """The key of one page, whose vision rows are the runs of `vision`, ascending by offset."""
    return _digest(parent, _int32_bytes(token_ids), _packed(vision))


def page_keys(
    token_ids: Sequence[int] | NDArray[np.int32],
    spans: Sequence[MediaSpan],
    item_keys: Sequence[bytes],
    page_size: int,
    root: bytes,
    first_page: int = 0,
    parent: bytes | None = None,
) -> list[bytes]:
    """The keys of all full pages from `first_page` on; spans ascend by start and do not overlap.

    A sequence that has grown passes how many keys it has as `first_page` and the last of them as `parent`. The result is the
    same as that of one call over everything. Work is in proportion to the new pages and the spans that meet them.
    """
    assert first_page >= 0 and (parent is not None or first_page == 0), f"page {first_page} needs the key of the page before it"
    assert first_page > 0 or parent in (None, root), "the first page has no parent but the root"
    begin, end = first_page * page_size, len(token_ids) // page_size * page_size
    ids = memoryview(_int32_bytes(token_ids[begin:end]))

    assert all(len(key) == KEY_BYTES for key in item_keys), f"an item's key has {KEY_BYTES} bytes"
    keys: list[bytes] = []
    key = root if parent is None else parent
    # The first span that can reach past `begin`: the last to start at or before it, or else the first of all.
    next_span = max(bisect_right(spans, begin, key=lambda span: span.start) - 1, 0)
    page_start = begin
    while page_start < end:
        page_end = page_start + page_size
        while next_span < len(spans) and spans[next_span].start + spans[next_span].count <= page_start:
            next_span += 1
        inside = _pages_inside(spans[next_span], page_start, end, page_size) if next_span < len(spans) else 0
        if inside:
            span = spans[next_span]
            if span.start > page_start - page_size:  # the page before is not inside
                run = _RUN.pack(0, item_keys[span.item], span.row + page_start - span.start, page_size)
                hashed = _digest(key, ids[(page_start - begin) * 4 : (page_end - begin) * 4], run)
                seed, first = hashed[:_SEED_BYTES], 0
            else:
                seed, first = key[:_SEED_BYTES], _COUNT.unpack(key[_SEED_BYTES:])[0] + 1
            keys += [seed + _COUNT.pack(number) for number in range(first, first + inside)]
            key = keys[-1]
            page_start += inside * page_size
            continue
        runs: list[VisionRun] = []
        while next_span < len(spans) and spans[next_span].start < page_end:
            span = spans[next_span]
            first, last = max(span.start, page_start), min(span.start + span.count, page_end)
            if first < last:
                runs.append((first - page_start, item_keys[span.item], span.row + first - span.start, last - first))
            if span.start + span.count > page_end:
                break  # it goes on in the next page
            next_span += 1
        key = _digest(key, ids[(page_start - begin) * 4 : (page_end - begin) * 4], _packed(runs))
        keys.append(key)
        page_start = page_end
    return keys


def _pages_inside(span: MediaSpan, page_start: int, end: int, page_size: int) -> int:
    """How many pages from `page_start` on, up to `end`, are full of the span's rows and do not reach its last one."""
    if span.start > page_start:
        return 0
    return max(0, min(span.start + span.count - 1, end) - page_start) // page_size


def _int32_bytes(token_ids: Sequence[int] | NDArray[np.int32]) -> bytes:
    return np.asarray(token_ids, dtype="<i4").tobytes()


def _packed(runs: Iterable[VisionRun]) -> bytes:
    packed = []
    for offset, item_key, row, count in runs:
        assert len(item_key) == KEY_BYTES, f"an item's key has {KEY_BYTES} bytes, this one has {len(item_key)}"
        packed.append(_RUN.pack(offset, item_key, row, count))
    return b"".join(packed)


def _digest(parent: bytes, ids: bytes | memoryview, runs: bytes) -> bytes:
    """parent 32 | number of ids 4 | ids 4 each | runs 44 each: bytes that can be read in one way only."""
    assert len(parent) == KEY_BYTES, f"a key has {KEY_BYTES} bytes, this one has {len(parent)}"
    return sha256(b"".join((_PAGE, parent, _COUNT.pack(len(ids) // 4), ids, runs))).digest()
