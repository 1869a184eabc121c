"""The scheduler driven as the engine drives it, over a memory that remembers what was written where. No model.

Pixels of items come some steps after they were asked for, or turn out to be broken. Drafts of the next tokens are sometimes
right. After each step the simulator checks memory, budgets, the order of starts, who was preempted, and that the work goes on:

    Between two lasting events (a token sampled, a sequence ended, one boosted, one arrived) pass at most
    2 * (sequences + 1) * (longest + 1) steps, and those that wait for pixels.

Why: while nothing lasting happens ranks are fixed, and in each step the highest-ranked running sequence moves, or one that
starved is started before it. The highest-ranked one is preempted by nobody, computes its at most `longest` tokens and then
samples, unless one that outranks it starts; that happens at most once per sequence, since nobody takes anything from the one on
top. The factor 2 is for steps whose tokens went to one that starved: it waits again only after somebody above it moved.

So a workload takes at most (tokens of answers + 3 * sequences) times that many steps, recomputation included, and a sequence
starts within `Simulator.starting_bound` steps after it came, whatever comes later.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from schedule.before import Before
from schedule.fake_runner import ROW_BYTES, FakeRunner, SimulatedMemory, Truth, truth_of
from sightline.cache.embeddings import EmbeddingCache
from sightline.cache.keys import embedding_key, root_key
from sightline.cache.pages import PageCache
from sightline.errors import PromptError
from sightline.schedule.plan import plan_step
from sightline.schedule.progress import abandon_encode, admit, advance, encode_is_ready, finish, take_tokens
from sightline.schedule.snapshots import StateSlotPool, give_back, keep, take_slots
from sightline.schedule.state import Limits, Schedule, Sequence, Status, Step
from sightline.schedule.upcoming import upcoming_items
from sightline.types import MediaItem, Request

END_TOKEN = 1
PIXEL_STEPS = 11  # in which pixels come


@dataclass(frozen=True)
class Arrival:
    """A request and when it comes; `abort_after` steps later its caller goes away."""

    at: int  # step
    request: Request
    max_tokens: int = 4
    priority: int = 0
    salt: str = ""
    n: int = 1
    abort_after: int | None = None


@dataclass(frozen=True)
class Workload:
    limits: Limits
    memory: SimulatedMemory
    arrivals: tuple[Arrival, ...]
    broken: frozenset[bytes] = frozenset()  # keys of items whose encoding fails each time
    crashes: frozenset[int] = frozenset()  # steps in which computing fails
    encode_crashes: frozenset[int] = frozenset()  # steps in which encoding fails as a whole
    flushes: frozenset[int] = frozenset()  # steps before which the caches are told to forget
    end_token: int | None = END_TOKEN  # sampled: the answer ends early


def make_schedule(limits: Limits, memory: SimulatedMemory, snapshots: int | None = None) -> Schedule:
    """`snapshots`: of a model whose layers keep states, how many of them fit."""
    states, pages = None, PageCache(memory.pages + 1, memory.page_size)
    if snapshots is not None:
        first = limits.max_sequences + 1
        states = StateSlotPool(list(range(first, first + snapshots)), memory.page_size, 1, grid=2, interval=5, answer_start=1)
        pages = PageCache(memory.pages + 1, memory.page_size, snapshots, states.free.append)
    return Schedule(
        limits=limits,
        pages=pages,
        embeddings=EmbeddingCache(memory.blocks, memory.block_rows, ROW_BYTES, memory.host_bytes),
        states=states,
    )


@dataclass
class Watched:
    """What the simulator remembers of a sequence besides what the scheduler does."""

    sequence: Sequence
    request_id: int
    came: int
    bound: int  # steps within which it must start
    started: int | None = None  # step of the first start
    output_at_start: int = 0
    cut: bool = False  # aborted or failed before its end


@dataclass
class Simulator:
    workload: Workload
    real_batches: bool = False
    overlap: bool = False  # a step is planned and launched before the results of the one before it are read
    drafts: int = 0  # most tokens that are guessed for each sequence and step
    snapshots: int | None = None  # of states, that fit; None: no layer keeps one
    pixel_steps: int = PIXEL_STEPS  # in which pixels come; 1: at once
    on_step: Callable[["Simulator", Step], None] | None = None
    schedule: Schedule = field(init=False)
    runner: FakeRunner = field(init=False)
    truths: dict[int, Truth] = field(default_factory=dict)
    indices: dict[int, int] = field(default_factory=dict)
    watched: dict[int, Watched] = field(default_factory=dict)
    requests: dict[int, list[Sequence]] = field(default_factory=dict)
    refused: int = 0
    quiet_steps: int = 0  # since the last lasting event
    _numbers: int = 0
    _launched: tuple[Step, dict[int, list[int]]] | None = None
    _pixels: dict[bytes, int] = field(default_factory=dict)  # items that are decoded, by key, and from which step on
    _computed_nothing: bool = False  # in the last step
    _async_encodes: dict[bytes, int] = field(
        default_factory=dict
    )  # items that are encoded asynchronously, and since which step

    def __post_init__(self) -> None:
        self.schedule = make_schedule(self.workload.limits, self.workload.memory, self.snapshots)
        self.runner = FakeRunner(self.workload.memory, self.schedule.embeddings, self.real_batches)
        self.schedule.pixels_pending = self._pixels_pending

    # ---- The engine's calls

    def add(self, arrival: Arrival) -> int | None:
        """The request's id, or None if it was refused."""
        request_id = self._numbers
        self._numbers += 1
        sequences: list[Sequence] = []
        for index in range(arrival.n):
            sequence = Sequence(
                id=self._numbers,
                request=arrival.request,
                max_tokens=arrival.max_tokens,
                priority=arrival.priority,
                arrival=request_id,
                root=root_key(arrival.salt),
                item_keys=tuple(embedding_key(item.key, "cpu") for item in arrival.request.items),
                page_size=self.workload.memory.page_size,
                leader=sequences[0] if sequences else None,
                answer_returns=request_id % 2 == 1,
            )
            self._numbers += 1
            sequences.append(sequence)
            self.indices[sequence.id] = index
        possible = self._possible(arrival)
        try:
            admit(self.schedule, sequences)
        except PromptError:
            assert not possible, "a request that fits is refused"
            self.refused += 1
            return None
        assert possible, "a request that can never fit is admitted"
        for sequence in sequences:
            self.truths[sequence.id] = truth_of(sequence, self.indices[sequence.id], self.workload.end_token)
        for sequence in sequences:
            bound = self.starting_bound()
            self.watched[sequence.id] = Watched(sequence, request_id, self.schedule.step, bound)
        self.requests[request_id] = sequences
        self.quiet_steps = 0
        return request_id

    def _possible(self, arrival: Arrival) -> bool:
        memory = self.workload.memory
        tokens = len(arrival.request) + arrival.max_tokens
        largest = max((item.rows for item in arrival.request.items), default=0)
        return tokens <= memory.pages * memory.page_size and largest <= memory.blocks * memory.block_rows

    def abort(self, request_id: int) -> None:
        """Ends what is left of a request, whatever it does."""
        for sequence in self.requests[request_id]:
            self.watched[sequence.id].cut |= sequence.status is not Status.FINISHED
            finish(self.schedule, sequence)
        self.quiet_steps = 0

    def fail(self, sequences: list[Sequence]) -> None:
        for request_id in {self.watched[sequence.id].request_id for sequence in sequences}:
            self.abort(request_id)

    def step(self) -> Step:
        """One step as Engine.step does it, and all checks."""
        self._finish_encodes()
        if self.schedule.step % 3 == 0:  # the device was fast
            self._take_launched()
        self._decode()
        self._guess()
        before = Before(self)
        step = plan_step(self.schedule)
        self._check_budgets(step)
        before.check_order(self)
        self._note_starts()
        self._computed_nothing = not step.chunks
        complete = self._encode(step)
        launched = None
        if step.number in self.workload.crashes and complete:
            self.fail([chunk.sequence for chunk in step.chunks])
        elif step.chunks and complete and all(chunk.sequence.status is Status.RUNNING for chunk in step.chunks):
            slots = take_slots(self.schedule, step)
            if self.snapshots is not None and step.number % 7 == 6:  # fails, and is planned again
                give_back(self.schedule, slots)
            else:
                launched = self._launch(step, slots)
        self._take_launched()
        self._launched = launched
        if not self.overlap or any(chunk.drafts for chunk in step.chunks):  # how many tokens come is known when they are read
            self._take_launched()
        self.schedule.check_integrity()
        self._check_states()
        self.quiet_steps += 1
        assert self.quiet_steps <= self.longest_quiet(), "steps pass and nothing lasting happens"
        if self.on_step is not None:
            self.on_step(self, step)
        return step

    def _launch(self, step: Step, slots: dict[int, int]) -> tuple[Step, dict[int, list[int]]]:
        if self.snapshots is not None:
            self.runner.restore_states(step.chunks, self.truths)
        sampled = self.runner.compute(step.chunks, self.truths, self.indices)
        if self.snapshots is not None:
            self.runner.save_states(step.chunks, slots)
        advance(self.schedule, step)
        keep(self.schedule, step, slots)
        return step, sampled

    def _decode(self) -> None:
        """Asks for pixels of what is needed soon; what is not any more is forgotten. Of broken items every other one is seen to
        be broken here, the others when they are encoded."""
        wanted = {item.key: item for item in upcoming_items(self.schedule)}
        self._pixels = {key: ready for key, ready in self._pixels.items() if key in wanted}
        for key, item in wanted.items():
            ready = self._pixels.setdefault(key, self.schedule.step + key[0] % self.pixel_steps)
            if ready <= self.schedule.step and key in self.workload.broken and key[1] % 2:
                self.fail([sequence for sequence in self._alive() if item in sequence.request.items])

    def _pixels_pending(self, item: MediaItem) -> bool:
        return self._pixels.get(item.key, self.schedule.step + 1) > self.schedule.step

    def _guess(self) -> None:
        """Drafts: the tokens that will come, but for some."""
        for sequence in self.schedule.running if self.drafts else ():
            done = len(sequence.output)
            truth = self.truths[sequence.id].output[done : done + self.drafts]
            drafts = [token if (done + place + sequence.id) % 3 else 2 for place, token in enumerate(truth)]
            sequence.drafts = tuple(drafts[: max(0, sequence.max_tokens - done - 1)])

    def _finish_encodes(self) -> None:
        """Some steps after they were begun, or when there is nobody whom it would hold up to wait for them."""
        now, wait = self.schedule.step, self._computed_nothing or not self.schedule.decodes
        done = [key for key, begun in self._async_encodes.items() if wait or begun + 1 + key[-1] % 3 <= now]
        for key in done:
            del self._async_encodes[key]
            encode_is_ready(self.schedule, key)

    def _take_launched(self) -> None:
        if self._launched is None:
            return
        step, sampled = self._launched
        self._launched = None
        taken = take_tokens(self.schedule, step, sampled)
        for sequence in [chunk.sequence for chunk in step.chunks if chunk.samples]:
            self.quiet_steps = 0
            if sequence.status is Status.FINISHED:
                continue  # computed in vain: its end was not known when the step was planned
            assert taken[sequence.id] == sequence.output[-len(taken[sequence.id]) :], "a token goes elsewhere"
            if self.workload.end_token in sequence.output:  # what was guessed beyond it is dropped
                del sequence.output[sequence.output.index(self.workload.end_token) + 1 :]
            if len(sequence.output) == sequence.max_tokens or sequence.output[-1] == self.workload.end_token:
                finish(self.schedule, sequence)

    def _encode(self, step: Step) -> bool:
        """Whether all that the step needs is there: else it is not computed, and the next plan is made without it."""
        if not step.encodes:
            return True
        failed = self.runner.encode(step.encodes, self.workload.broken, step.number in self.workload.encode_crashes)
        for encode in step.encodes:
            key = encode.entry.key
            self._pixels.pop(encode.item.key, None)
            if key in failed:
                line = (*self.schedule.running, *self.schedule.waiting)
                self.fail([sequence for sequence in line if key in sequence.item_keys])
                abandon_encode(self.schedule, key)
            elif encode.side_stream:
                self._async_encodes[key] = step.number
            else:
                encode_is_ready(self.schedule, key)
        return not any(encode.entry.key in failed and not encode.side_stream for encode in step.encodes)

    def run(self) -> None:
        """The whole workload, to its end."""
        arrivals = sorted(self.workload.arrivals, key=lambda arrival: arrival.at)
        aborts: dict[int, list[int]] = {}
        clock = 0
        while arrivals or self.schedule.has_work or self._launched is not None:
            while arrivals and arrivals[0].at <= clock:
                arrival = arrivals.pop(0)
                request_id = self.add(arrival)
                if request_id is not None and arrival.abort_after is not None:
                    aborts.setdefault(clock + arrival.abort_after, []).append(request_id)
            for request_id in aborts.pop(clock, ()):
                self.abort(request_id)
            if self.schedule.step in self.workload.flushes:
                self.schedule.pages.clear()
                self.schedule.embeddings.clear()
            if self.schedule.has_work or self._launched is not None:
                self.step()
            clock += 1
        self.check_end()

    # ---- Bounds

    def _alive(self) -> list[Sequence]:
        return [*self.schedule.running, *self.schedule.waiting]

    def _longest(self) -> int:
        return max((len(s.request) + s.max_tokens for s in self._alive()), default=0)

    def longest_quiet(self) -> int:
        quiet = 2 * (len(self._alive()) + 1) * (self._longest() + 1) + 2 * self.overlap  # results are read a step later
        items = sum(len(sequence.request.items) for sequence in self._alive())
        return quiet + PIXEL_STEPS * (items + 1) * (len(self._alive()) + 1)

    def starting_bound(self) -> int:
        """Steps within which a sequence that comes now starts, whatever comes later.

        After `starvation_steps` all who came before it have waited as long, so each step boosts and tries the one that has
        waited longest, and nothing starts that it outranks while it waits. Then only the sequences that run can hold it up: as
        many as there are places, and the boosted ones above it. Each causes at most max_tokens + 2 lasting events.
        """
        limits = self.schedule.limits
        ahead = len(self.schedule.waiting) + 1
        people = limits.max_sequences + ahead
        known = [(len(a.request), a.max_tokens) for a in self.workload.arrivals]
        known += [(len(s.request), s.max_tokens) for s in self._alive()]
        longest, answer = max(prompt + answer for prompt, answer in known), max(answer for _, answer in known)
        items = sum(len(arrival.request.items) * arrival.n for arrival in self.workload.arrivals)
        quiet = 2 * (people + 1) * (longest + 1) + PIXEL_STEPS * (items + 1) * (people + 1)
        return limits.starvation_steps + ahead * (limits.starvation_steps + people * (answer + 2) * quiet)

    # ---- Checks

    def _check_budgets(self, step: Step) -> None:
        limits, schedule = self.schedule.limits, self.schedule
        assert step.tokens <= limits.max_tokens
        assert len(schedule.running) <= limits.max_sequences
        fresh = [encode.item.patches for encode in step.encodes if not encode.from_host]
        assert sum(fresh) <= limits.max_patches or len(fresh) == 1, f"{fresh} patches in one step"
        assert len({chunk.sequence.id for chunk in step.chunks}) == len(step.chunks), "two chunks of one sequence"
        for chunk in step.chunks:
            sequence = chunk.sequence
            assert sequence.status is Status.RUNNING
            assert chunk.count > 0 and chunk.start == sequence.computed, "a chunk is the next tokens"
            sure = chunk.start + chunk.count - len(chunk.drafts)
            assert chunk.samples == (sure == len(sequence)) and len(chunk.logits) == chunk.samples * (1 + len(chunk.drafts))
            assert chunk.drafts == sequence.drafts[: len(chunk.drafts)] and (chunk.samples or not chunk.drafts)
            assert sequence.pages * sequence.page_size >= chunk.start + chunk.count
        taken = schedule.pages.private_pages + schedule.pages.tree_pages + schedule.pages.free_pages
        assert taken == self.workload.memory.pages
        assert schedule.embeddings.used_blocks <= self.workload.memory.blocks

    def _note_starts(self) -> None:
        for sequence in self.schedule.running:
            watched = self.watched[sequence.id]
            if sequence.running_since == self.schedule.step:
                watched.output_at_start = len(sequence.output)
                if watched.started is None:
                    watched.started = self.schedule.step
        for sequence in self.schedule.waiting:
            watched = self.watched[sequence.id]
            if watched.started is None:
                assert self.schedule.step - watched.came <= watched.bound, f"sequence {sequence.id} starves"

    def _check_states(self) -> None:
        states = self.schedule.states
        if states is not None:
            waiting = sum(sequence.awaits_node is not None for sequence in self._alive())
            assert len(states.free) + self.schedule.pages.state_bytes + waiting == self.snapshots, (
                "a slot for snapshots is lost"
            )

    def check_end(self) -> None:
        self._finish_encodes()  # nobody decodes
        assert not self._async_encodes
        schedule = self.schedule
        assert sorted(schedule.free_slots) == list(range(schedule.limits.max_sequences))
        assert not schedule.running and not schedule.waiting
        assert schedule.pages.private_pages == 0 and schedule.pages.total_locks == 0
        assert schedule.embeddings.total_pins == 0 and schedule.embeddings.pinned_blocks == 0
        assert schedule.pages.free_pages + schedule.pages.tree_pages == self.workload.memory.pages
        assert schedule.embeddings.evictable_blocks + schedule.embeddings.free_blocks == self.workload.memory.blocks
        for key in schedule.embeddings.host_evicted():
            self.runner.host.pop(key, None)
        if schedule.states is not None:
            assert self.snapshots is not None
            assert len(schedule.states.free) + schedule.pages.state_bytes == self.snapshots, "a slot for snapshots is lost"
            schedule.pages.clear()
            assert len(schedule.states.free) == self.snapshots
        held = sum(len(rows) * ROW_BYTES for rows in self.runner.host.values())
        assert held == schedule.embeddings.host_bytes_used <= self.workload.memory.host_bytes
        for watched in self.watched.values():
            output, expected = watched.sequence.output, self.truths[watched.sequence.id].output
            assert watched.sequence.status is Status.FINISHED
            assert output == expected[: len(output)], "the answer depends on the schedule"
            assert watched.cut or output == expected, "tokens are lost"
