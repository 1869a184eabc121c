"""Embedding rows of images and videos: who has which blocks of the arena, and what is in host memory.

The arena is `blocks` blocks of `block_rows` rows. An entry's rows fill its blocks in order, wherever those are:

    entry    rows   0 1 2 3 | 4 5 6 7 | 8 9         blocks (5, 2, 9), block_rows 4
    arena    slots  20 … 23 | 8 … 11  | 36 37       the rest of its last block stays unused

    absent ──reserve──► PENDING ──mark_ready──► READY ──evicted by another reserve──► absent, or in the host tier only
                            └──abandon──► absent

An entry can be evicted if it is READY and not pinned.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from sightline.cache.host_tier import HostTier


class EmbeddingState(Enum):
    PENDING = "pending"  # blocks are reserved, the rows are being made or copied back; nobody may read them yet
    READY = "ready"


@dataclass(eq=False, slots=True)
class EmbeddingEntry:
    """The rows of one item on the device. Only the cache that made it changes it; others read."""

    key: bytes  # sightline.cache.keys.embedding_key
    rows: int
    blocks: tuple[int, ...]
    state: EmbeddingState
    from_host: bool  # while PENDING: restored from the host tier, not encoded
    last_used: int  # by the cache's counter
    pins: int = 0  # requests that need the rows
    wanted: bool = field(default=False, repr=False)  # pinned since it was reserved: further pins count as hits


@dataclass(frozen=True)
class Offload:
    """Rows of an evicted entry, to be copied to the host tier before its blocks are overwritten."""

    key: bytes
    blocks: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class Reservation:
    entry: EmbeddingEntry
    offloads: tuple[Offload, ...]  # to be done first
    from_host: bool  # the rows are in the host tier: copy them back instead of encoding


class EmbeddingCache:
    """Bookkeeping of the arena and of the host tier; the rows themselves live elsewhere.

    After one `reserve`, or several of one step, and before `mark_ready`, the storage does all offloads, then fills the entries,
    then frees what `host_evicted` names, in this order: a key may be offloaded, restored or dropped in the same step.

    Each use of an item is one pin. The first pin after a reserve is the use that it was reserved for: a miss, or a host hit.
    Every further one is a hit, also while PENDING, since it shares the encode.
    """

    def __init__(self, blocks: int, block_rows: int, row_bytes: int, host_bytes: int = 0) -> None:
        assert blocks > 0 and block_rows > 0 and row_bytes > 0, f"{blocks} blocks of {block_rows} rows of {row_bytes} bytes"
        self.blocks = blocks
        self.block_rows = block_rows
        self.row_bytes = row_bytes
        self.hits = 0
        self.misses = 0
        self.evictions = 0  # entries that left the device for others
        self.host_hits = 0
        self._free = list(range(blocks - 1, -1, -1))  # taken from the end
        self._entries: dict[bytes, EmbeddingEntry] = {}
        self._evictable: OrderedDict[bytes, EmbeddingEntry] = OrderedDict()  # READY and unpinned, longest unused first
        self._evictable_blocks = 0
        self._pinned_blocks = 0
        self._host = HostTier(host_bytes)
        self._clock = 0  # counts operations that use entries

    # ---- Sizes

    @property
    def capacity_rows(self) -> int:
        return self.blocks * self.block_rows

    @property
    def device_bytes(self) -> int:
        """Size of the whole arena."""
        return self.capacity_rows * self.row_bytes

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks of all entries, evictable or not."""
        return self.blocks - len(self._free)

    @property
    def evictable_blocks(self) -> int:
        return self._evictable_blocks

    @property
    def pinned_blocks(self) -> int:
        """Blocks of entries that a request needs."""
        return self._pinned_blocks

    @property
    def total_pins(self) -> int:
        """Pins of all entries together, for checks. O(entries)."""
        return sum(entry.pins for entry in self._entries.values())

    @property
    def host_bytes_used(self) -> int:
        return self._host.bytes_used

    def fits(self, rows: int) -> bool:
        """Whether so many rows fit into an otherwise empty arena."""
        return self._blocks_of(rows) <= self.blocks

    def can_reserve(self, rows: int, spare: int = 0) -> bool:
        """Whether `reserve` can give so many rows now and leave `spare` blocks free or evictable."""
        return self._blocks_of(rows) + spare <= len(self._free) + self._evictable_blocks

    def _blocks_of(self, rows: int) -> int:
        return -(-rows // self.block_rows)

    # ---- Entries

    def lookup(self, key: bytes) -> EmbeddingEntry | None:
        """The entry on the device, in either state. Nothing is marked as used: pin what is needed."""
        return self._entries.get(key)

    def reserve(self, key: bytes, rows: int) -> Reservation:
        """Blocks for an absent item, from entries longest unused where free ones do not suffice. The entry is not pinned yet.

        Until `mark_ready` or `abandon` it is PENDING: it is not evicted, nor is its copy in the host tier, if there is one.
        """
        assert key not in self._entries, f"{key.hex()} is on the device already"
        assert rows > 0 and self.can_reserve(rows), f"{rows} rows do not fit beside what is pinned or being encoded"
        self._clock += 1
        from_host = key in self._host
        if from_host:
            self._host.hold(key)
            self.host_hits += 1
        else:
            self.misses += 1
        offloads = self._make_room(self._blocks_of(rows))
        blocks = tuple(self._free.pop() for _ in range(self._blocks_of(rows)))
        entry = EmbeddingEntry(key, rows, blocks, EmbeddingState.PENDING, from_host, last_used=self._clock)
        self._entries[key] = entry
        return Reservation(entry, offloads, from_host)

    def pin(self, entry: EmbeddingEntry) -> None:
        """A request needs the rows: the entry stays until it is unpinned as often."""
        assert self._entries.get(entry.key) is entry, f"{entry} is no longer on the device"
        self._clock += 1
        entry.last_used = self._clock
        if entry.pins == 0:
            self._pinned_blocks += len(entry.blocks)
            if entry.state is EmbeddingState.READY:
                self._evictable_blocks -= len(entry.blocks)
                del self._evictable[entry.key]
        entry.pins += 1
        self.hits += entry.wanted
        entry.wanted = True

    def unpin(self, entry: EmbeddingEntry) -> None:
        assert entry.pins > 0, f"{entry} is not pinned"
        self._clock += 1
        entry.last_used = self._clock
        entry.pins -= 1
        if entry.pins == 0:
            self._pinned_blocks -= len(entry.blocks)
            if entry.state is EmbeddingState.READY:
                self._make_evictable(entry)

    def mark_ready(self, entry: EmbeddingEntry) -> None:
        """The rows are in place, or ordered before everything that will read them or take their blocks."""
        self._check_encoding(entry)
        entry.state = EmbeddingState.READY
        if entry.from_host:
            self._host.release(entry.key)
        if entry.pins == 0:
            self._clock += 1
            entry.last_used = self._clock
            self._make_evictable(entry)

    def abandon(self, entry: EmbeddingEntry) -> None:
        """Encoding or restoring failed: the entry goes and its blocks are free. All who pinned it have unpinned it before.

        The copy in the host tier, if it was being restored, goes too: the next try encodes from pixels.
        """
        self._check_encoding(entry)
        assert entry.pins == 0, f"{entry} is abandoned while requests have it pinned"
        if entry.from_host:
            self._host.release(entry.key)
            self._host.drop(entry.key)
        self._remove(entry)

    def row_slots(self, entry: EmbeddingEntry, first: int, count: int) -> NDArray[np.int64]:
        """Places in the arena of rows[first : first + count], [count]."""
        assert 0 <= first <= first + count <= entry.rows, f"rows {first} to {first + count} of {entry}"
        rows = np.arange(first, first + count, dtype=np.int64)
        blocks = np.array(entry.blocks, dtype=np.int64)
        return blocks[rows // self.block_rows] * self.block_rows + rows % self.block_rows

    def slots_of(self, blocks: tuple[int, ...], rows: int) -> NDArray[np.int64]:
        """Slots in the arena of the first `rows` rows of some blocks, [rows]."""
        return (np.array(blocks, np.int64)[:, None] * self.block_rows + np.arange(self.block_rows)).ravel()[:rows]

    def clear(self) -> None:
        """Forget all unpinned READY entries, and the host tier but for what is being restored from it."""
        while self._evictable:
            self._pop_evictable()
        self._host.clear()

    def retain(self, keys: Collection[bytes]) -> None:
        """Forget all unpinned READY entries but these. They are not copied to the host tier."""
        for key in [key for key in self._evictable if key not in keys]:
            entry = self._evictable.pop(key)
            self._evictable_blocks -= len(entry.blocks)
            self._remove(entry)

    # ---- Host tier

    def host_lookup(self, key: bytes) -> bool:
        """Whether the rows are in host memory. Nothing is marked as used."""
        return key in self._host

    def host_evicted(self) -> list[bytes]:
        """Keys that left the host tier since this was last asked: the storage can free their tensors."""
        return self._host.take_dropped()

    # ---- Inside

    def _make_room(self, blocks: int) -> tuple[Offload, ...]:
        """Evict until so many blocks are free; says which of the evicted must be copied to the host tier."""
        evicted: list[EmbeddingEntry] = []
        while len(self._free) < blocks:
            evicted.append(self._pop_evictable())
        self.evictions += len(evicted)
        copies = self._host.admit([(entry.key, entry.rows * self.row_bytes) for entry in evicted])
        return tuple(Offload(entry.key, entry.blocks, entry.rows) for entry in evicted if entry.key in copies)

    def _make_evictable(self, entry: EmbeddingEntry) -> None:
        self._evictable[entry.key] = entry
        self._evictable_blocks += len(entry.blocks)

    def _pop_evictable(self) -> EmbeddingEntry:
        _, entry = self._evictable.popitem(last=False)
        self._evictable_blocks -= len(entry.blocks)
        self._remove(entry)
        return entry

    def _remove(self, entry: EmbeddingEntry) -> None:
        del self._entries[entry.key]
        self._free.extend(reversed(entry.blocks))

    def _check_encoding(self, entry: EmbeddingEntry) -> None:
        assert self._entries.get(entry.key) is entry, f"{entry} is no longer on the device"
        assert entry.state is EmbeddingState.PENDING, f"{entry} is not being encoded"

    # ---- Self-check

    def check_integrity(self) -> None:
        """Raise AssertionError with a sentence if its state is inconsistent. O(blocks)."""
        entries = self._entries.values()
        owned = [block for entry in entries for block in entry.blocks] + self._free
        assert sorted(owned) == list(range(self.blocks)), "a block does not belong to exactly one entry or the free ones"
        for key, entry in self._entries.items():
            assert entry.key == key, f"{entry} is filed under another key"
            assert len(entry.blocks) == self._blocks_of(entry.rows), f"{entry} has a wrong number of blocks"
            assert entry.pins >= 0, f"{entry} has a negative number of pins"

        pinned = sum(len(entry.blocks) for entry in entries if entry.pins > 0)
        assert self._pinned_blocks == pinned, f"{pinned} blocks are pinned, {self._pinned_blocks} are counted"
        evictable = {
            key: entry for key, entry in self._entries.items() if entry.state is EmbeddingState.READY and not entry.pins
        }
        assert dict(self._evictable) == evictable, (
            "the queue of eviction does not hold exactly the unpinned entries that are ready"
        )
        count = sum(len(entry.blocks) for entry in evictable.values())
        assert self._evictable_blocks == count, f"{count} blocks can be evicted, {self._evictable_blocks} are counted"
        used = [entry.last_used for entry in self._evictable.values()]
        assert used == sorted(used), "an entry stands in the queue of eviction before one used earlier"
        self._host.check_integrity(
            {entry.key for entry in entries if entry.from_host and entry.state is EmbeddingState.PENDING}
        )
