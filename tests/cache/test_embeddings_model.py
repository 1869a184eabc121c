"""EmbeddingCache against its slow model and with a storage whose contents can be checked: few blocks, few images."""

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache.embedding_model import EmbeddingModel, Storage, rows_of
from sightline.cache.embeddings import EmbeddingCache, EmbeddingState, Reservation

ROW_BYTES = 10
ROWS = {b"%d" % index: rows for index, rows in enumerate([1, 3, 4, 5, 8, 8, 11, 2, 6, 40])}  # the last hardly ever fits
KEYS = st.sampled_from(sorted(ROWS))
CHOICE = st.integers(0, 1 << 20)  # of one in a list, by remainder


class EmbeddingsMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(1, 8), block_rows=st.integers(1, 5), host_rows=st.sampled_from([0, 5, 13, 20, 60]))
    def begin(self, blocks: int, block_rows: int, host_rows: int) -> None:
        self.cache = EmbeddingCache(blocks, block_rows, ROW_BYTES, host_rows * ROW_BYTES)
        self.model = EmbeddingModel(blocks, block_rows, ROW_BYTES, host_rows * ROW_BYTES)
        self.storage = Storage(self.cache)
        self.planned: list[Reservation] = []  # reserved, not run yet

    @rule(key=KEYS, spare=st.integers(0, 2))
    def reserve(self, key: bytes, spare: int) -> None:
        rows = ROWS[key]
        assert self.cache.fits(rows) == (self.model.size(rows) <= self.model.blocks)
        assert self.cache.can_reserve(rows, spare) == self.model.can_reserve(rows, spare)
        if key in self.model.entries or not self.model.can_reserve(rows, 0):
            with pytest.raises(AssertionError, match=r"on the device already|do not fit"):
                self.cache.reserve(key, rows)
            return
        assert self.cache.host_lookup(key) == (key in self.model.host)
        reservation = self.cache.reserve(key, rows)
        offloads, from_host = self.model.reserve(key, rows)
        assert {offload.key for offload in reservation.offloads} == offloads
        assert all(offload.rows == ROWS[offload.key] for offload in reservation.offloads)
        assert reservation.from_host == from_host
        assert (reservation.entry.state, reservation.entry.pins) == (EmbeddingState.PENDING, 0)
        self.planned.append(reservation)

    @rule(fails=st.sets(st.integers(0, 3), max_size=2))
    def run(self, fails: set[int]) -> None:
        """The step runs; some of its encodes fail after having written what they wrote."""
        self.storage.run(self.planned)
        assert set(self.storage.host) == self.model.stored - self.model.take_dropped()
        for index, reservation in enumerate(self.planned):
            entry = reservation.entry
            if index in fails:
                while entry.pins:
                    self.unpin_key(entry.key)
                self.cache.abandon(entry)
                self.model.abandon(entry.key)
            else:
                self.cache.mark_ready(entry)
                self.model.mark_ready(entry.key)
        self.planned = []

    @rule(choice=CHOICE)
    def pin(self, choice: int) -> None:
        if not self.model.entries:
            return
        key = sorted(self.model.entries)[choice % len(self.model.entries)]
        entry = self.cache.lookup(key)
        assert entry is not None
        self.cache.pin(entry)
        self.model.pin(key)

    @rule(choice=CHOICE)
    def unpin(self, choice: int) -> None:
        pinned = sorted(key for key, entry in self.model.entries.items() if entry.pins)
        if pinned:
            self.unpin_key(pinned[choice % len(pinned)])

    def unpin_key(self, key: bytes) -> None:
        entry = self.cache.lookup(key)
        assert entry is not None
        self.cache.unpin(entry)
        self.model.unpin(key)

    @rule(really=st.integers(0, 9))
    def clear(self, really: int) -> None:
        if really == 0:  # else nothing would ever grow old
            self.cache.clear()
            self.model.clear()

    @invariant()
    def same_as_the_model(self) -> None:
        cache, model = self.cache, self.model
        cache.check_integrity()
        for key in ROWS:
            entry, expected = cache.lookup(key), model.entries.get(key)
            assert (entry is None) == (expected is None)
            if entry is not None and expected is not None:
                assert (entry.rows, entry.pins) == (expected.rows, expected.pins)
                assert (entry.state is EmbeddingState.READY) == expected.ready
                if expected.ready:
                    assert self.storage.read(entry) == rows_of(entry)
            assert cache.host_lookup(key) == (key in model.host)
        assert (cache.free_blocks, cache.used_blocks) == (model.free_blocks, model.blocks - model.free_blocks)
        assert cache.evictable_blocks == sum(model.size(entry.rows) for entry in model.evictable.values())
        assert cache.pinned_blocks == sum(model.size(entry.rows) for entry in model.entries.values() if entry.pins)
        assert cache.total_pins == sum(entry.pins for entry in model.entries.values())
        assert cache.host_bytes_used == model.host_used
        counts = (cache.hits, cache.misses, cache.evictions, cache.host_hits)
        assert counts == (model.hits, model.misses, model.evictions, model.host_hits)

    def teardown(self) -> None:
        if self.planned:
            self.run(set())
        while self.cache.total_pins:
            self.unpin(0)
        self.cache.clear()
        self.storage.run([])
        self.cache.check_integrity()
        assert (self.cache.used_blocks, self.cache.host_bytes_used, self.storage.host) == (0, 0, {})


# Red with almost any change of EmbeddingCache or HostTier: what goes when, what is copied or counted, whose rows are read.
TestEmbeddings = EmbeddingsMachine.TestCase
TestEmbeddings.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)

# How often each rule is taken in a long run, and with what.
Moves = list[tuple[float, Callable[[EmbeddingsMachine, random.Random], None]]]
MOVES: Moves = [
    (6, lambda machine, dice: machine.reserve(dice.choice(sorted(ROWS)), dice.randint(0, 2))),
    (3, lambda machine, dice: machine.run({index for index in range(4) if dice.random() < 0.1})),
    (3, lambda machine, dice: machine.pin(dice.randrange(99))),
    (4, lambda machine, dice: machine.unpin(dice.randrange(99))),
    (0.1, lambda machine, dice: machine.clear(0)),
]


# Red if something goes wrong only after a long time; short runs rarely fill both tiers.
@pytest.mark.parametrize("host_rows", [0, 5, 13, 20, 60])
@pytest.mark.parametrize(("blocks", "block_rows"), [(6, 2), (5, 5), (30, 1)])
def test_a_long_run(blocks: int, block_rows: int, host_rows: int) -> None:
    dice = random.Random(blocks * 100 + host_rows)
    machine = EmbeddingsMachine()
    machine.begin(blocks, block_rows, host_rows)
    for move in dice.choices([move for _, move in MOVES], [weight for weight, _ in MOVES], k=6000):
        move(machine, dice)
        machine.same_as_the_model()
    assert machine.cache.evictions > 100
    assert machine.cache.host_hits > 20 or not host_rows
    machine.teardown()
