"""What the scheduler knows: sequences, limits and the step it plans. Plain data; no torch, no clock.

A sequence's tokens and where their keys and values are:

    0            len(nodes)*page_size        computed            len(seq)
    |── shared pages, in the prefix tree ──|── own pages ──|── not yet computed ──|
                                                 the newest sampled token is among these

A step that was launched and whose results have not been read is in flight: the tokens it samples count as part of their
sequences, though only the device knows them yet. So the next step can be planned and launched meanwhile.

The embeddings of an item are READY, or PENDING: its pixels are being decoded, or the tower is at them; or FAILED, which ends
the requests that need them. Whether a chunk may wait for them is one rule, `encodes_in_line` in plan.py.
"""

import bisect
import enum
import itertools
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.cache.embeddings import EmbeddingCache, EmbeddingEntry, EmbeddingState, Offload
from sightline.cache.pages import Node, PageCache
from sightline.types import MediaItem, Request

if TYPE_CHECKING:
    from sightline.schedule.pace import Pace
    from sightline.schedule.snapshots import StateSlotPool

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
    root: bytes  # key that the page keys start from: the salt
    item_keys: tuple[bytes, ...]  # of the request's items in the embedding cache and in page keys: cache.keys.embedding_key
    page_size: int
    leader: "Sequence | None" = None
    answer_returns: bool = False  # the answer is likely to come back as a part of a prompt, as in a tool loop
    long_root: bytes | None = None  # its root once it is longer than Schedule.long_from; None: it is already, or there is none

    status: Status = Status.WAITING
    slot: int = -1  # while it runs: where workers keep what they remember of it
    output: list[int] = field(default_factory=list)  # tokens that have been read
    in_flight: int = 0  # tokens after those: sampled by launched steps, not read yet
    drafts: tuple[int, ...] = ()  # guesses at the tokens after those, which the next step checks
    computed: int = 0  # by steps that were launched
    nodes: list[Node] = field(default_factory=list)
    own_pages: int = 0  # pages after those of `nodes`
    keys: list[bytes] = field(default_factory=list)  # of full pages, as far as known
    pinned: dict[int, EmbeddingEntry] = field(default_factory=dict)  # by item index
    copies: Node | None = None  # locked: its page is copied to the first own one with the next step the sequence is in
    resumes_at: Node | None = None  # whose state, pinned, is copied to its slot with the next step it is in
    snapshot_at: list[int] = field(default_factory=list)  # tokens after which its state is to be kept, ascending
    awaits_node: tuple[int, int] | None = None  # a snapshot within its answer: after so many tokens, in which slot
    kept_in_answer: Node | None = None  # that has the snapshot before
    stalled_on: int | None = None  # index of the item whose pixels were not there when it last tried to go on
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
        """Tokens to compute before the next one can be sampled."""
        return self.prompt_tokens + len(self.output) + self.in_flight - self.computed

    @property
    def decoding(self) -> bool:
        """Whether the answer grows with each step: all but its newest token is computed."""
        answer = len(self.output) + self.in_flight
        return answer > 0 and self.computed >= self.prompt_tokens + answer - 1

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

    def has_pinned(self, start: int, end: int) -> bool:
        """Whether it holds the embeddings of all items that share a token with [start, end)."""
        return all(self.request.spans[number].item in self.pinned for number in self.spans_meeting(start, end))


@dataclass(frozen=True)
class Limits:
    max_sequences: int
    max_tokens: int  # per step
    max_patches: int  # per step; one item may exceed it alone
    lookahead_patches: int  # per step
    starvation_steps: int
    async_encode: bool = False  # while others decode, new images are encoded on a side stream, beside their steps


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, start + count) of a sequence, computed in one step; the last of them may be drafts."""

    sequence: Sequence
    start: int
    count: int
    logits: tuple[int, ...] = ()  # offsets of tokens after which one is sampled: the last known one, and each draft
    drafts: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        return bool(self.logits)


@dataclass(frozen=True)
class ScheduledEncode:
    """An item to put into the embedding cache: from its pixels, or back from the host tier."""

    entry: EmbeddingEntry
    item: MediaItem
    offloads: tuple[Offload, ...]  # rows to save to the host tier before their blocks are overwritten
    from_host: bool
    side_stream: bool = False  # beside this step and later ones: nobody reads them before `encode_is_ready`


@dataclass(frozen=True)
class Step:
    number: int
    chunks: tuple[Chunk, ...]
    encodes: tuple[ScheduledEncode, ...]
    awaits_pixels: bool = False  # somebody could not go on without pixels that are on their way
    decoding: int = 0  # sequences whose answers grow
    prompt_tokens: int = 0  # of the others

    @property
    def patches_in_line(self) -> int:
        return sum(encode.item.patches for encode in self.encodes if not (encode.side_stream or encode.from_host))

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
    encoding: dict[bytes, EmbeddingEntry] = field(default_factory=dict)  # on the side stream, by key
    pixels_pending: Callable[[MediaItem], bool] = lambda item: False  # whether an encode would have to wait for pixels
    pace: "Pace | None" = None  # limits what goes beside those who decode; None: the limits alone do
    states: "StateSlotPool | None" = None  # for models with layers that keep a state per sequence
    long_from: int | None = None  # tokens: sequences of more have other rotary frequencies (long_rope.py)
    step: int = 0
    preemptions: int = 0
    changes: int = 0  # how often the queue has changed: what will be needed soon may be something else now
    free_slots: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.free_slots = list(range(self.limits.max_sequences - 1, -1, -1))  # taken from the end

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def decodes(self) -> bool:
        """Whether a sequence is in the midst of its answer."""
        return any(sequence.decoding for sequence in self.running)

    def check_integrity(self) -> None:
        """Everything the caches count is held by somebody here. Costs a walk over all of it: for tests and idle moments."""
        self.pages.check_integrity()
        self.embeddings.check_integrity()
        _check_sequences(self)
        for key, entry in self.encoding.items():
            assert self.embeddings.lookup(key) is entry and entry.state is EmbeddingState.PENDING and not entry.pins


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
        if sequence.copies is not None:
            locks[sequence.copies.key] = locks.get(sequence.copies.key, 0) + 1
            assert sequence.own_pages and sequence.copies not in sequence.nodes, "what is copied has a page to go to"
        for entry in sequence.pinned.values():
            pins[entry.key] = pins.get(entry.key, 0) + 1
    slots = [sequence.slot for sequence in schedule.running] + schedule.free_slots
    assert sorted(slots) == list(range(schedule.limits.max_sequences)), "a slot is not exactly one sequence's or free"
    for sequence in schedule.waiting:
        assert sequence.status is Status.WAITING and sequence.slot == -1
        assert not (sequence.nodes or sequence.own_pages or sequence.pinned or sequence.computed), "a waiting one holds nothing"
        assert sequence.resumes_at is None and sequence.copies is None, "a waiting one holds nothing"
    for line in (schedule.waiting, schedule.running):
        assert all(first.rank < second.rank for first, second in itertools.pairwise(line))
    assert sum(sequence.own_pages for sequence in schedule.running) == schedule.pages.private_pages
    assert sum(locks.values()) == schedule.pages.total_locks, "locks without an owner"
    assert sum(pins.values()) == schedule.embeddings.total_pins, "pins without an owner"


def by_rank(line: Seq[Sequence], sequence: Sequence) -> int:
    """Where a sequence belongs in a line sorted by rank."""
    return bisect.bisect_right(line, sequence.rank, key=lambda other: other.rank)
