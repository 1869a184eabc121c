"""Planning a step: which tokens of which sequences are computed, which images are encoded for them.

The one idea: a sequence is a list of tokens of which a prefix is computed. Prefill, decode and recovery from preemption are
the same thing, computing the next tokens; what differs is how many. Each step gives tokens to running sequences, those that
decode first, then starts waiting ones, in order of rank, within a budget of tokens and one of patches. A chunk may end
anywhere, inside an image too; it never reaches a row that is not in the embedding cache when the step runs.

Who may take memory from whom: a sequence that could not move at all for want of pages or rows preempts the lowest-ranked
running sequence below it that is not in this step's plan yet, which goes back to wait and will compute its tokens again. So
either the highest-ranked sequence moves or all others do.
"""

from dataclasses import dataclass, field

from sightline.cache.keys import page_key, page_keys
from sightline.schedule.state import Chunk, Encode, Schedule, Sequence, Status, Step, by_rank

AHEAD_SEQUENCES = 8  # how far into the queue images are encoded ahead


@dataclass
class _Plan:
    tokens_left: int
    patches_left: int
    chunks: list[Chunk] = field(default_factory=list)
    encodes: list[Encode] = field(default_factory=list)
    planned: set[int] = field(default_factory=set)  # ids of sequences with a chunk
    decodes: bool = False  # somebody's answer grows in this step


def plan_step(schedule: Schedule) -> Step:
    """The next step. Pages and rows it needs are reserved; `advance` must follow before the next plan.

    It is empty when the only work is to read what is in flight, or to wait for what is encoded aside.
    """
    schedule.step += 1
    plan = _Plan(schedule.limits.max_tokens, schedule.limits.max_patches)
    _start_starving(schedule, plan)
    decoding: list[Sequence] = []
    filling: list[Sequence] = []
    for sequence in schedule.running:
        (decoding if sequence.remaining == 1 else filling).append(sequence)
    for sequence in decoding + filling:
        # an earlier one may have preempted it, and one that starved has its chunk already
        eligible = sequence.status is Status.RUNNING and sequence.id not in plan.planned and not sequence.has_its_last
        if eligible and plan.tokens_left and _give_tokens(schedule, plan, sequence):
            plan.decodes |= sequence.computed >= sequence.prompt_tokens
    _start_waiting(schedule, plan)
    _encode_ahead(schedule, plan)
    reading = any(sequence.in_flight for sequence in (*schedule.running, *schedule.waiting))
    idle = reading or bool(schedule.encoding) or not schedule.has_work
    assert plan.chunks or idle, "a step with work must compute something"
    return Step(schedule.step, tuple(plan.chunks), tuple(plan.encodes))


def _give_tokens(schedule: Schedule, plan: _Plan, sequence: Sequence) -> bool:
    """Plans the sequence's next chunk if there is room for one. True if it did."""
    start, remaining = sequence.computed, sequence.remaining
    count = min(remaining, plan.tokens_left)
    # Pages are counted before rows are reserved: rows reserved for a chunk that then has no page would block who could move.
    count = _within_pages(schedule, plan, sequence, start, count)
    count = _with_rows(schedule, plan, sequence, start, count) if count else 0
    if not count:
        return False
    _allocate(schedule, sequence, start + count)
    plan.chunks.append(Chunk(sequence, start, count, samples=count == remaining))
    plan.planned.add(sequence.id)
    plan.tokens_left -= count
    return True


def _with_rows(schedule: Schedule, plan: _Plan, sequence: Sequence, start: int, count: int) -> int:
    """How many of `count` tokens can be computed with the rows that are cached or that this step can encode; pins those."""
    aside = schedule.limits.encode_aside and plan.decodes
    spans = sequence.spans_meeting(start, start + count)
    for place, index in enumerate(spans):
        span = sequence.request.spans[index]
        if span.item in sequence.pinned:
            continue
        before_it = max(0, span.start - start)  # up to the image, or nothing
        key, item = sequence.item_keys[span.item], sequence.request.items[span.item]
        entry = schedule.embeddings.lookup(key)
        if aside and (entry is None or key in schedule.encoding):
            _encode_beside(schedule, plan, sequence, spans[place:])
            entry = schedule.embeddings.lookup(key)
        if key in schedule.encoding or (aside and entry is None and item.ref.digest in schedule.undecoded):
            return before_it
        if entry is None:
            # An item above the budget goes alone, else it would never go.
            affordable = item.patches <= plan.patches_left or not plan.encodes
            if not affordable or not _make_room_for_rows(schedule, plan, sequence, item.rows, stuck=span.start <= start):
                return before_it
            _reserve(schedule, plan, key, sequence, span.item, aside)
            if plan.encodes[-1].aside:
                return before_it
            entry = plan.encodes[-1].entry
        schedule.ahead.discard(key)
        schedule.embeddings.pin(entry)
        sequence.pinned[span.item] = entry
    return count


def _encode_beside(schedule: Schedule, plan: _Plan, sequence: Sequence, spans: range) -> None:
    """All images that the sequence could use now are begun together, as far as there is room without taking it from others."""
    for index in spans:
        item_index = sequence.request.spans[index].item
        key, item = sequence.item_keys[item_index], sequence.request.items[item_index]
        if schedule.embeddings.lookup(key) is not None or item.ref.digest in schedule.undecoded:
            continue
        affordable = item.patches <= plan.patches_left or not plan.encodes
        if not affordable or not schedule.embeddings.can_reserve(item.rows):
            return
        _reserve(schedule, plan, key, sequence, item_index, aside=True)


def _make_room_for_rows(schedule: Schedule, plan: _Plan, sequence: Sequence, rows: int, stuck: bool) -> bool:
    """Whether rows can be reserved; a sequence that is stuck without them preempts others that hold rows."""
    while not schedule.embeddings.can_reserve(rows):
        victim = _victim(schedule, plan, sequence, holding_rows=True) if stuck else None
        if victim is None:
            return False
        preempt(schedule, victim)
    return True


def _reserve(schedule: Schedule, plan: _Plan, key: bytes, sequence: Sequence, item_index: int, aside: bool) -> None:
    item = sequence.request.items[item_index]
    reservation = schedule.embeddings.reserve(key, item.rows)
    aside = aside and not reservation.from_host  # a copy is quickly made
    if aside:
        schedule.encoding[key] = reservation.entry
    plan.encodes.append(Encode(reservation.entry, item, reservation.offloads, reservation.from_host, aside))
    if not reservation.from_host:
        plan.patches_left -= item.patches


def _within_pages(schedule: Schedule, plan: _Plan, sequence: Sequence, start: int, count: int) -> int:
    """How many of `count` tokens there are pages for; preempts others only if there would be none at all."""
    if start + count <= sequence.pages * sequence.page_size:
        return count  # most tokens of an answer go to a page that is there
    while True:
        fitting = (sequence.pages + schedule.pages.available_pages) * sequence.page_size - start
        if fitting > 0:
            return min(count, fitting)
        victim = _victim(schedule, plan, sequence)
        if victim is None:
            return 0
        preempt(schedule, victim)


def _allocate(schedule: Schedule, sequence: Sequence, end: int) -> None:
    """Pages for the sequence's tokens up to `end`."""
    needed = -(-end // sequence.page_size) - sequence.pages
    if needed > 0:
        sequence.page_table[sequence.pages : sequence.pages + needed] = schedule.pages.allocate(needed)
        sequence.own_pages += needed


def _victim(schedule: Schedule, plan: _Plan, sequence: Sequence, holding_rows: bool = False) -> Sequence | None:
    """The lowest-ranked running sequence below this one that the step does not count on yet."""
    for other in reversed(schedule.running):
        if other.rank <= sequence.rank:
            return None
        if other.id not in plan.planned and (other.pinned or not holding_rows):
            return other
    return None


def preempt(schedule: Schedule, sequence: Sequence) -> None:
    """Takes everything from a running sequence and lets it wait; its answer so far is kept and will be computed again."""
    schedule.preemptions += 1
    schedule.running.remove(sequence)
    release(schedule, sequence)
    enqueue(schedule, sequence)


def release(schedule: Schedule, sequence: Sequence) -> None:
    """Gives back pages, locks and pins."""
    own = sequence.page_table[len(sequence.nodes) : sequence.pages].tolist()
    schedule.pages.free(own)
    schedule.pages.unlock(sequence.nodes)
    for entry in sequence.pinned.values():
        schedule.embeddings.unpin(entry)
    sequence.nodes, sequence.own_pages, sequence.computed, sequence.pinned = [], 0, 0, {}


def enqueue(schedule: Schedule, sequence: Sequence) -> None:
    sequence.status = Status.WAITING
    sequence.waiting_since = schedule.step
    schedule.waiting.insert(by_rank(schedule.waiting, sequence), sequence)
    schedule.queue_order.append((schedule.step, sequence))


def _start_waiting(schedule: Schedule, plan: _Plan) -> None:
    """Starts waiting sequences in order of rank until one does not fit; nobody overtakes it, so nobody starves."""
    position = 0
    while position < len(schedule.waiting) and plan.tokens_left:
        sequence = schedule.waiting[position]
        if not sequence.may_start or sequence.has_its_last:
            position += 1
            continue
        if sequence.waiting_since == schedule.step:
            return  # preempted in this very step
        if len(schedule.running) >= schedule.limits.max_sequences or not _start(schedule, plan, sequence):
            return


def _start_starving(schedule: Schedule, plan: _Plan) -> None:
    """Starts the sequence that has waited longest before anything else, once it has waited too long.

    A place is taken for it only from one that has itself run that long and got a token since it started, so each gets its turn
    and no turn is in vain: what is computed may be lost with the place, the answer is not.
    """
    order, patience = schedule.queue_order, schedule.limits.starvation_steps
    while order and not _waits_since(order[0][1], order[0][0]):
        order.popleft()
    # Followers that may not start yet are passed over: their leader may be behind them.
    sequence = next((other for since, other in order if _waits_since(other, since) and other.may_start), None)
    if sequence is None or schedule.step - sequence.waiting_since < patience:
        return
    if not sequence.boosted:
        schedule.waiting.remove(sequence)
        sequence.boosted = True
        schedule.waiting.insert(by_rank(schedule.waiting, sequence), sequence)
    if len(schedule.running) >= schedule.limits.max_sequences:
        veterans = (other for other in reversed(schedule.running) if other.had_its_turn(schedule.step, patience))
        veteran = next(veterans, None)
        if veteran is None:
            return
        preempt(schedule, veteran)
    _start(schedule, plan, sequence)


def _waits_since(sequence: Sequence, step: int) -> bool:
    """False if it no longer waits, or waits again since another step."""
    return sequence.status is Status.WAITING and sequence.waiting_since == step


def _start(schedule: Schedule, plan: _Plan, sequence: Sequence) -> bool:
    """Moves a waiting sequence to running with a first chunk, if there is room."""
    extend_keys(sequence)
    nodes = schedule.pages.match(sequence.keys)
    schedule.pages.lock(nodes)
    sequence.nodes = list(nodes)
    sequence.page_table[: len(nodes)] = [node.page for node in nodes]
    # With every token cached the last is computed again, for its logits; its key and value go to the scratch page.
    sequence.computed = min(len(nodes) * sequence.page_size, len(sequence) - 1)
    if not _give_tokens(schedule, plan, sequence):
        release(schedule, sequence)
        return False
    schedule.waiting.remove(sequence)
    schedule.running.insert(by_rank(schedule.running, sequence), sequence)
    sequence.status = Status.RUNNING
    sequence.running_since = schedule.step
    sequence.output_at_start = len(sequence.output)
    if not sequence.starts:
        sequence.cached_tokens = min(sequence.computed, len(sequence.request))
    sequence.starts += 1
    return True


def extend_keys(sequence: Sequence) -> None:
    """Keys of all pages that the sequence's known tokens fill."""
    size, known = sequence.page_size, len(sequence.keys)
    full = sequence.known // size
    if known * size >= sequence.prompt_tokens:  # pages of the answer alone, without vision rows
        for page in range(known, full):
            sequence.keys.append(page_key(sequence.keys[-1], sequence.tokens(page * size, (page + 1) * size), ()))
    elif full > known:
        sequence.keys += page_keys(
            sequence.tokens(0, full * size),
            sequence.request.spans,
            [item.key for item in sequence.request.items],
            size,
            sequence.root,
            first_page=known,
            parent=sequence.keys[-1] if known else None,
        )


def _encode_ahead(schedule: Schedule, plan: _Plan) -> None:
    """Spends what is left of the patch budget on images of the next waiting sequences, in at most half of the cache."""
    budget = min(schedule.limits.lookahead_patches, plan.patches_left)
    cache, queue = schedule.embeddings, schedule.waiting[:AHEAD_SEQUENCES]
    aside = schedule.limits.encode_aside and plan.decodes
    wanted = {key for sequence in queue for key in sequence.item_keys}
    schedule.ahead = {key for key in schedule.ahead & wanted if cache.lookup(key) is not None}
    kept = blocks_ahead = sum(len(entry.blocks) for key in schedule.ahead if (entry := cache.lookup(key)) is not None)
    for sequence in queue:
        missing = [i for i, key in enumerate(sequence.item_keys) if cache.lookup(key) is None]
        if not missing or sequence.request.items[missing[0]].patches > budget:
            continue
        extend_keys(sequence)
        covered = len(schedule.pages.match(sequence.keys)) * sequence.page_size
        for index in missing:
            key, item = sequence.item_keys[index], sequence.request.items[index]
            if sequence.item_ends[index] <= covered or cache.lookup(key) is not None:
                continue
            if aside and item.ref.digest in schedule.undecoded:
                continue
            blocks = -(-item.rows // cache.block_rows)
            # `kept` spares what was encoded ahead before: one image ahead in another's place would be encoded in turns.
            fits = 2 * (blocks_ahead + blocks) <= cache.blocks and cache.can_reserve(item.rows, spare=kept)
            if item.patches > budget or not fits:
                return
            _reserve(schedule, plan, key, sequence, index, aside)
            schedule.ahead.add(key)
            budget -= item.patches
            blocks_ahead += blocks
