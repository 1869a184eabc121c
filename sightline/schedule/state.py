"""What the scheduler knows: sequences, limits and the step it plans. Plain data; no torch, no clock.

A sequence's tokens and where their keys and values are:

    0            len(nodes)*page_size        computed            len(seq)
    |── shared pages, in the prefix tree ──|── own pages ──|── not yet computed ──|
                                                 the newest sampled token is among these

A step that was launched and whose results have not been read is in flight: the tokens it samples count as part of their
sequences, though only the device knows them yet. So the next step can be planned and launched meanwhile.
"""

import bisect
import enum
import itertools
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.cache.embeddings import EmbeddingCache, EmbeddingEntry, EmbeddingState, Offload
from sightline.cache.pages import Node, PageCache
from sightline.types import MediaItem, Request

Rank = tuple[int, int, int]  # smaller runs first: (priority, arrival, id); no two sequences have the same


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One answer in the making. Of n answers to a prompt the others follow a leader, which computes the prompt first."""

    id: int
    request: Request
    max_tokens: int
    priority: int
    arrival: int
    root: bytes  # key that the page keys start from: salt and weights epoch
    item_keys: tuple[bytes, ...]  # keys of the request's items in the embedding cache
    page_size: int
    leader: "Sequence | None" = None

    status: Status = Status.WAITING
    output: list[int] = field(default_factory=list)  # tokens that have been read
    in_flight: int = 0  # tokens after those: sampled by launched steps, not read yet
    computed: int = 0  # by steps that were launched
    nodes: list[Node] = field(default_factory=list)
    own_pages: int = 0  # pages after those of `nodes`
    keys: list[bytes] = field(default_factory=list)  # of full pages, as far as known
    pinned: dict[int, EmbeddingEntry] = field(default_factory=dict)  # by item index
    waiting_since: int = 0  # step
    running_since: int = 0  # step
    output_at_start: int = 0  # tokens of the answer when it last started
    boosted: bool = False  # waited too long: goes before all priorities
    cached_tokens: int = 0  # prompt tokens found in the prefix tree at the first start
    starts: int = 0
    prompt_tokens: int = field(init=False)
    page_table: NDArray[np.int32] = field(init=False)  # shared pages, then own ones
    span_starts: list[int] = field(init=False)
    item_ends: list[int] = field(init=False)  # token after an item's last span

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.request)
        self.page_table = np.zeros(-(-(self.prompt_tokens + self.max_tokens) // self.page_size), np.int32)
        self.span_starts = [span.start for span in self.request.spans]
        self.item_ends = [0] * len(self.request.items)
        for span in self.request.spans:
            self.item_ends[span.item] = max(self.item_ends[span.item], span.start + span.count)

    def __len__(self) -> int:
        return self.prompt_tokens + len(self.output) + self.in_flight

    @property
    def known(self) -> int:
        """Tokens whose ids the host knows."""
        return self.prompt_tokens + len(self.output)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return self.prompt_tokens + len(self.output) + self.in_flight - self.computed

    @property
    def has_its_last(self) -> bool:
        """Whether nothing is left to compute: the answer's last token is in flight."""
        return len(self.output) + self.in_flight >= self.max_tokens

    @property
    def pages(self) -> int:
        return len(self.nodes) + self.own_pages

    @property
    def rank(self) -> Rank:
        return (-(1 << 30) if self.boosted else self.priority, self.arrival, self.id)

    @property
    def may_start(self) -> bool:
        """Followers wait until their leader has the prompt's pages in the tree."""
        return self.leader is None or bool(self.leader.output) or self.leader.status is Status.FINISHED

    def had_its_turn(self, step: int, patience: int) -> bool:
        """Whether a running sequence may lose its place: it ran long enough, and its answer grew, so none runs in vain."""
        return step - self.running_since >= patience and len(self.output) > self.output_at_start

    def tokens(self, start: int, end: int) -> NDArray[np.int32]:
        """Token ids [start, end), prompt and answer together; all must be known."""
        assert end <= self.known, "a token in flight has no id yet"
        prompt = self.prompt_tokens
        if end <= prompt:
            return self.request.token_ids[start:end]
        answer = np.array(self.output[max(0, start - prompt) : end - prompt], np.int32)
        return answer if start >= prompt else np.concatenate((self.request.token_ids[start:], answer))

    def spans_meeting(self, start: int, end: int) -> range:
        """Indices of spans that share a token with [start, end)."""
        first = bisect.bisect_right(self.span_starts, start) - 1
        if first < 0 or self.request.spans[first].start + self.request.spans[first].count <= start:
            first += 1
        return range(first, bisect.bisect_left(self.span_starts, end))


@dataclass(frozen=True)
class Limits:
    max_sequences: int
    max_tokens: int  # per step
    max_patches: int  # per step; one item may exceed it alone
    lookahead_patches: int  # per step
    starvation_steps: int
    encode_aside: bool = False  # while others decode, who needs a new image waits for it, and it is encoded beside their steps


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, start + count) of a sequence, computed in one step; the last chunk before a sample samples."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class Encode:
    """An item to put into the embedding cache: from its pixels, or back from the host tier."""

    entry: EmbeddingEntry
    item: MediaItem
    offloads: tuple[Offload, ...]  # rows to save to the host tier before their blocks are overwritten
    from_host: bool
    aside: bool = False  # beside this step and later ones: nobody reads the rows before `finish_encodes`


@dataclass(frozen=True)
class Step:
    number: int
    chunks: tuple[Chunk, ...]
    encodes: tuple[Encode, ...]

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


@dataclass
class Schedule:
    """All sequences and caches of an engine. The functions in schedule/ are the only ones that change it."""

    limits: Limits
    pages: PageCache
    embeddings: EmbeddingCache
    waiting: list[Sequence] = field(default_factory=list)  # by rank
    running: list[Sequence] = field(default_factory=list)  # by rank
    queue_order: deque[tuple[int, Sequence]] = field(default_factory=deque)  # (step, sequence) as they began to wait
    ahead: set[bytes] = field(default_factory=set)  # items encoded ahead that nobody has used yet
    encoding: dict[bytes, EmbeddingEntry] = field(default_factory=dict)  # aside, by key
    undecoded: frozenset[bytes] = frozenset()  # digests of items whose pixels are on their way: not encoded aside before
    step: int = 0
    preemptions: int = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def decodes(self) -> bool:
        """Whether a sequence is in the midst of its answer."""
        return any(sequence.remaining == 1 for sequence in self.running)

    def check_integrity(self) -> None:
        """Everything the caches count is held by somebody here. Costs a walk over all of it: for tests and idle moments."""
        self.pages.check_integrity()
        self.embeddings.check_integrity()
        _check_sequences(self)
        for key, entry in self.encoding.items():
            assert self.embeddings.lookup(key) is entry and entry.state is EmbeddingState.ENCODING and not entry.pins


def _check_sequences(schedule: Schedule) -> None:
    pins: dict[bytes, int] = {}
    locks: dict[bytes, int] = {}
    for sequence in schedule.running:
        assert sequence.status is Status.RUNNING
        assert len(sequence.nodes) * sequence.page_size <= sequence.computed + sequence.page_size
        assert sequence.computed < len(sequence), "a running sequence always has a token to compute"
        assert sequence.computed <= sequence.pages * sequence.page_size, "computed tokens need pages"
        assert [node.page for node in sequence.nodes] == sequence.page_table[: len(sequence.nodes)].tolist()
        for node in sequence.nodes:
            locks[node.key] = locks.get(node.key, 0) + 1
        for entry in sequence.pinned.values():
            pins[entry.key] = pins.get(entry.key, 0) + 1
    for sequence in schedule.waiting:
        assert sequence.status is Status.WAITING
        assert not (sequence.nodes or sequence.own_pages or sequence.pinned or sequence.computed), "a waiting one holds nothing"
    for line in (schedule.waiting, schedule.running):
        assert all(first.rank < second.rank for first, second in itertools.pairwise(line))
    assert sum(sequence.own_pages for sequence in schedule.running) == schedule.pages.private_pages
    assert sum(locks.values()) == schedule.pages.total_locks, "locks without an owner"
    assert sum(pins.values()) == schedule.embeddings.total_pins, "pins without an owner"


def by_rank(line: Seq[Sequence], sequence: Sequence) -> int:
    """Where a sequence belongs in a line sorted by rank."""
    return bisect.bisect_right(line, sequence.rank, key=lambda other: other.rank)
