"""EmbeddingCache as one would write it without caring for speed, and the storage that follows its orders with real contents."""

from dataclasses import dataclass, field

from sightline.cache.embeddings import EmbeddingCache, EmbeddingEntry, Offload, Reservation


@dataclass
class ModelEntry:
    rows: int
    last_used: int
    pins: int = 0
    ready: bool = False
    restoring: bool = False
    pinned_before: bool = False


@dataclass
class EmbeddingModel:
    blocks: int
    block_rows: int
    row_bytes: int
    host_limit: int
    entries: dict[bytes, ModelEntry] = field(default_factory=dict)
    host: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # bytes, last used
    stored: set[bytes] = field(default_factory=set)  # what the storage has, or will have, and was not told to free
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    host_hits: int = 0
    now: int = 0

    def size(self, rows: int) -> int:
        return -(-rows // self.block_rows)

    @property
    def free_blocks(self) -> int:
        return self.blocks - sum(self.size(entry.rows) for entry in self.entries.values())

    @property
    def evictable(self) -> dict[bytes, ModelEntry]:
        return {key: entry for key, entry in self.entries.items() if entry.ready and not entry.pins}

    def can_reserve(self, rows: int, spare: int) -> bool:
        evictable_blocks = sum(self.size(entry.rows) for entry in self.evictable.values())
        return self.free_blocks + evictable_blocks - self.size(rows) >= spare

    def reserve(self, key: bytes, rows: int) -> tuple[set[bytes], bool]:
        """Keys to offload, and whether the rows come from the host."""
        self.now += 1
        restoring = key in self.host
        self.host_hits += restoring
        self.misses += not restoring
        # It is there before it has blocks, so that its copy in the host tier counts as being restored from here on.
        self.entries[key] = ModelEntry(rows, self.now, restoring=restoring)
        offloads: set[bytes] = set()
        while self.free_blocks < 0:
            oldest = min(self.evictable, key=lambda key: self.entries[key].last_used)
            self.evictions += 1
            self._offer_to_host(oldest, self.entries.pop(oldest).rows * self.row_bytes, offloads)
        self.stored |= offloads
        return offloads, restoring

    def _offer_to_host(self, key: bytes, nbytes: int, offloads: set[bytes]) -> None:
        self.now += 1
        if key in self.host:
            self.host[key] = (nbytes, self.now)
            return
        restoring = {key for key, entry in self.entries.items() if entry.restoring and not entry.ready}
        if sum(self.host[key][0] for key in restoring) + nbytes > self.host_limit:
            return
        while self.host_used + nbytes > self.host_limit:
            oldest = min(self.host.keys() - restoring, key=lambda key: self.host[key][1])
            del self.host[oldest]
            offloads.discard(oldest)
        self.host[key] = (nbytes, self.now)
        if key not in self.stored:
            offloads.add(key)

    @property
    def host_used(self) -> int:
        return sum(nbytes for nbytes, _ in self.host.values())

    def pin(self, key: bytes) -> None:
        self.now += 1
        entry = self.entries[key]
        entry.pins, entry.last_used = entry.pins + 1, self.now
        self.hits += entry.pinned_before
        entry.pinned_before = True

    def unpin(self, key: bytes) -> None:
        self.now += 1
        entry = self.entries[key]
        entry.pins, entry.last_used = entry.pins - 1, self.now

    def mark_ready(self, key: bytes) -> None:
        self.now += 1
        entry = self.entries[key]
        entry.ready, entry.last_used = True, self.now
        if entry.restoring:
            self.host[key] = (self.host[key][0], self.now)

    def abandon(self, key: bytes) -> None:
        if self.entries.pop(key).restoring:
            del self.host[key]

    def take_dropped(self) -> set[bytes]:
        dropped = self.stored - self.host.keys()
        self.stored &= self.host.keys()
        return dropped

    def clear(self) -> None:
        for key in self.evictable:
            del self.entries[key]
        restoring = {key for key, entry in self.entries.items() if entry.restoring and not entry.ready}
        self.host = {key: value for key, value in self.host.items() if key in restoring}


@dataclass
class Storage:
    """The rows themselves, as (key, row): if the bookkeeping is wrong, somebody reads the rows of another image."""

    cache: EmbeddingCache
    arena: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # by slot
    host: dict[bytes, list[tuple[bytes, int]]] = field(default_factory=dict)

    def run(self, reservations: list[Reservation]) -> None:
        """A step's orders, in the order that EmbeddingCache asks for."""
        for reservation in reservations:
            for offload in reservation.offloads:
                assert offload.key not in self.host, "copied though it is there"
                self.host[offload.key] = self._rows_in_blocks(offload)
        for reservation in reservations:
            entry = reservation.entry
            rows = self.host[entry.key] if reservation.from_host else rows_of(entry)
            self.arena.update(zip(self.cache.row_slots(entry, 0, entry.rows).tolist(), rows, strict=True))
        for key in self.cache.host_evicted():
            del self.host[key]

    def _rows_in_blocks(self, offload: Offload) -> list[tuple[bytes, int]]:
        size = self.cache.block_rows
        slots = [block * size + offset for block in offload.blocks for offset in range(size)]
        return [self.arena[slot] for slot in slots[: offload.rows]]

    def read(self, entry: EmbeddingEntry) -> list[tuple[bytes, int]]:
        return [self.arena[slot] for slot in self.cache.row_slots(entry, 0, entry.rows).tolist()]


def rows_of(entry: EmbeddingEntry) -> list[tuple[bytes, int]]:
    return [(entry.key, row) for row in range(entry.rows)]
