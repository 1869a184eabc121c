"""Planning a step: which tokens of which sequences are computed, which images are encoded for them.

The one idea: a sequence is a list of tokens of which a prefix is computed. Prefill, decode and recovery from preemption are
the same thing, computing the next tokens; what differs is how many. Each step gives tokens to running sequences, those that
decode first, then starts waiting ones, in order of rank, within a budget of tokens and one of patches. A chunk may end
anywhere, inside an image too; it never reaches an embedding that is not there when the step runs.

Who waits for pixels holds up nobody: it is passed over by those behind it, and gives up its pages and its place if somebody
else can use them.

Who may take memory from whom: a sequence that could not move at all for want of pages or embedding slots preempts one that
waits for pixels, else the lowest-ranked running sequence below it that is not in this step's plan yet, which goes back to wait
and will compute its tokens again. So
either the highest-ranked sequence moves or all others do.
"""

from dataclasses import dataclass, field

from sightline.schedule.long_rope import become_long, grows_long
from sightline.schedule.pace import backlog
from sightline.schedule.prefix import cached_tokens, keep_unfinished_page, known_beginning, known_prefix
from sightline.schedule.snapshots import forget, plan_snapshots, until_snapshot
from sightline.schedule.state import Chunk, Schedule, ScheduledEncode, Sequence, Status, Step, by_rank
from sightline.types import MediaItem

AHEAD_SEQUENCES = 8  # how far into the queue images are encoded ahead


@dataclass
class _Plan:
    tokens_left: int
    prompt_tokens_left: int  # of the above, for those that do not decode
    patches_left: int
    chunks: list[Chunk] = field(default_factory=list)
    encodes: list[ScheduledEncode] = field(default_factory=list)
    planned: set[int] = field(default_factory=set)  # ids of sequences with a chunk
    decoding: int = 0  # sequences whose answers grow in this step
    awaits_pixels: bool = False  # somebody could not go on without pixels that are on their way


def plan_step(schedule: Schedule) -> Step:
    """The next step. Pages and rows it needs are reserved; `advance` must follow before the next plan.

    It is empty when the only work is to read what is in flight, or to wait for pixels or for what the side stream encodes; or
    when all who run have just grown long.
    """
    schedule.step += 1
    lengthened = schedule.long_from is not None and lengthen(schedule, schedule.long_from)
    decoding: list[Sequence] = []
    filling: list[Sequence] = []
    for sequence in schedule.running:
        (decoding if sequence.decoding else filling).append(sequence)
    plan = _budgets(schedule, len(decoding), filling)
    most_of_prompts = plan.prompt_tokens_left
    _start_starving(schedule, plan)
    for sequence in decoding:
        if _may_move(plan, sequence) and plan.tokens_left:
            plan.decoding += _give_tokens(schedule, plan, sequence, decodes=True)
    for sequence in filling:
        if _may_move(plan, sequence) and plan.tokens_left and plan.prompt_tokens_left:
            _give_tokens(schedule, plan, sequence)
    _start_waiting(schedule, plan)
    _encode_ahead(schedule, plan)
    reading = any(sequence.in_flight for sequence in (*schedule.running, *schedule.waiting))
    idle = reading or lengthened or plan.awaits_pixels or bool(schedule.encoding) or not schedule.has_work
    assert plan.chunks or idle, "a step with work must compute something"
    prompts = most_of_prompts - plan.prompt_tokens_left
    return Step(schedule.step, tuple(plan.chunks), tuple(plan.encodes), plan.awaits_pixels, plan.decoding, prompts)


def _budgets(schedule: Schedule, decoding: int, filling: list[Sequence]) -> _Plan:
    limits, pace = schedule.limits, schedule.pace
    plan = _Plan(limits.max_tokens, limits.max_tokens, limits.max_patches)
    if pace is not None and decoding:
        waiting = backlog([sequence.remaining for sequence in (*filling, *schedule.waiting)])
        plan.prompt_tokens_left = pace.tokens(decoding, waiting, limits.max_tokens)
        if not limits.async_encode:
            plan.patches_left = pace.patches(decoding, limits.max_patches)
    return plan


def _may_move(plan: _Plan, sequence: Sequence) -> bool:
    """An earlier one may have preempted it, and one that starved has its chunk already."""
    return sequence.status is Status.RUNNING and sequence.id not in plan.planned and not sequence.has_its_last


def _give_tokens(schedule: Schedule, plan: _Plan, sequence: Sequence, decodes: bool = False) -> bool:
    """Plans the sequence's next chunk if there is room for one. True if it did."""
    start, remaining = sequence.computed, sequence.remaining
    sequence.stalled_on = _item_without_pixels(schedule, sequence, start) if start < sequence.prompt_tokens else None
    if sequence.stalled_on is not None:  # before it takes pages from anybody
        plan.awaits_pixels = True
        return False
    drafts = sequence.drafts if sequence.drafts and sequence.decoding and not sequence.in_flight else ()
    assert not drafts or schedule.states is None, "a state that has taken a wrong draft cannot be cut back"
    count = min(remaining + len(drafts), plan.tokens_left)
    if not decodes:
        count = min(count, plan.prompt_tokens_left)
    if sequence.snapshot_at:
        count = until_snapshot(sequence, start, count)
    # Pages are counted before embedding slots are reserved: those of a chunk that then has no page would block who could move.
    count = _within_pages(schedule, plan, sequence, start, count)
    if count and start < sequence.prompt_tokens:
        count = _with_embeddings(schedule, plan, sequence, start, count)
    if not count:
        return False
    _allocate(schedule, sequence, start + count)
    logits: tuple[int, ...] = (count - 1,) if count == remaining else ()
    if drafts:
        drafts = drafts[: count - remaining]
        logits = tuple(range(remaining - 1, count))
    plan.chunks.append(Chunk(sequence, start, count, logits, drafts))
    plan.planned.add(sequence.id)
    plan.tokens_left -= count
    if not decodes:
        plan.prompt_tokens_left -= count
    return True


def _awaits_pixels(schedule: Schedule, sequence: Sequence) -> bool:
    """Whether what it stalled on when it last tried to go on is still on its way; another may have had it encoded since, or
    even have computed its tokens."""
    index = sequence.stalled_on
    if index is None:
        return False
    key = sequence.item_keys[index]
    if schedule.embeddings.lookup(key) is not None or not _lacks_pixels(schedule, key, sequence.request.items[index]):
        return False
    return sequence.status is Status.RUNNING or cached_tokens(schedule, sequence) < sequence.item_ends[index]


def _item_without_pixels(schedule: Schedule, sequence: Sequence, token: int) -> int | None:
    """The index of the item that a token of the prompt belongs to, if it cannot be encoded yet for want of pixels."""
    for number in sequence.spans_meeting(token, token + 1):
        index = sequence.request.spans[number].item
        key, item = sequence.item_keys[index], sequence.request.items[index]
        missing = index not in sequence.pinned and schedule.embeddings.lookup(key) is None
        if missing and _lacks_pixels(schedule, key, item):
            return index
    return None


def encodes_in_line(schedule: Schedule, plan: _Plan) -> bool:
    """The one rule of waiting: while others decode their tokens do not wait for the tower, if it has a stream of its own; then
    who needs a new image waits for it. Else it is encoded before the step, in line with it, and nobody waits."""
    return not (schedule.limits.async_encode and plan.decoding)


def _with_embeddings(schedule: Schedule, plan: _Plan, sequence: Sequence, start: int, count: int) -> int:
    """How many of `count` tokens can be computed with embeddings that are READY or that this step can encode; pins those."""
    in_line, cache = encodes_in_line(schedule, plan), schedule.embeddings
    spans = sequence.spans_meeting(start, start + count)
    for place, index in enumerate(spans):
        span = sequence.request.spans[index]
        if span.item in sequence.pinned:
            continue
        before_it = max(0, span.start - start)  # up to the image, or nothing
        key, item = sequence.item_keys[span.item], sequence.request.items[span.item]
        if not in_line and (cache.lookup(key) is None or key in schedule.encoding):
            _encode_together(schedule, plan, sequence, spans[place:])
        entry = cache.lookup(key)
        if key in schedule.encoding:
            return before_it
        if entry is None and _lacks_pixels(schedule, key, item):
            plan.awaits_pixels = True
            return before_it
        if entry is None:
            # An item above the budget goes alone, else it would never go.
            affordable = item.patches <= plan.patches_left or not plan.encodes
            if not affordable or not _make_room_for_rows(schedule, plan, sequence, item.rows, stuck=span.start <= start):
                return before_it
            _reserve(schedule, plan, key, sequence, span.item, side_stream=not in_line)
            if plan.encodes[-1].side_stream:
                return before_it
            entry = plan.encodes[-1].entry
        schedule.ahead.discard(key)
        cache.pin(entry)
        sequence.pinned[span.item] = entry
    return count


def _lacks_pixels(schedule: Schedule, key: bytes, item: MediaItem) -> bool:
    return schedule.pixels_pending(item) and not schedule.embeddings.host_lookup(key)


def _encode_together(schedule: Schedule, plan: _Plan, sequence: Sequence, spans: range) -> None:
    """All images that the sequence could use now are begun together, on the side stream, as far as there is room without taking
    it from others."""
    for index in spans:
        item_index = sequence.request.spans[index].item
        key, item = sequence.item_keys[item_index], sequence.request.items[item_index]
        if schedule.embeddings.lookup(key) is not None or _lacks_pixels(schedule, key, item):
            continue
        affordable = item.patches <= plan.patches_left or not plan.encodes
        if not affordable or not schedule.embeddings.can_reserve(item.rows):
            return
        _reserve(schedule, plan, key, sequence, item_index, side_stream=True)


def _make_room_for_rows(schedule: Schedule, plan: _Plan, sequence: Sequence, rows: int, stuck: bool) -> bool:
    """Whether rows can be reserved; a sequence that is stuck without them preempts others that hold rows."""
    while not schedule.embeddings.can_reserve(rows):
        victim = _victim(schedule, plan, sequence, holding_rows=True) if stuck else None
        if victim is None:
            return False
        preempt(schedule, victim)
    return True


def _reserve(schedule: Schedule, plan: _Plan, key: bytes, sequence: Sequence, item_index: int, side_stream: bool) -> None:
    item = sequence.request.items[item_index]
    reservation = schedule.embeddings.reserve(key, item.rows)
    side_stream = side_stream and not reservation.from_host  # a copy is quickly made
    if side_stream:
        schedule.encoding[key] = reservation.entry
    plan.encodes.append(ScheduledEncode(reservation.entry, item, reservation.offloads, reservation.from_host, side_stream))
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
    """One that waits for pixels, else the lowest-ranked running sequence below this one that the step does not count on yet."""
    stalled = _stalled(schedule, plan, sequence, holding_rows)
    if stalled is not None:
        return stalled
    for other in reversed(schedule.running):
        if other.rank <= sequence.rank:
            return None
        if other.id not in plan.planned and (other.pinned or not holding_rows):
            return other
    return None


def _stalled(schedule: Schedule, plan: _Plan, sequence: Sequence, holding_rows: bool = False) -> Sequence | None:
    """The lowest-ranked running sequence that waits for pixels and has something to give."""
    for other in reversed(schedule.running):
        holds = other.pinned if holding_rows else other.pages
        if other is not sequence and other.id not in plan.planned and holds and _awaits_pixels(schedule, other):
            return other
    return None


def lengthen(schedule: Schedule, long_from: int) -> bool:
    """Sequences that are about to become longer than `long_from` tokens get the frequencies of long ones (long_rope.py), and
    start again with the next step, when their tokens in flight are known. Whether there were any."""
    growing = [one for one in (*schedule.running, *schedule.waiting) if grows_long(one, long_from)]
    for sequence in growing:
        if sequence.status is Status.RUNNING:
            preempt(schedule, sequence)
        become_long(sequence, long_from)
    return bool(growing)


def preempt(schedule: Schedule, sequence: Sequence) -> None:
    """Takes everything from a running sequence and lets it wait; its answer so far is kept and will be computed again."""
    schedule.preemptions += 1
    schedule.changes += 1
    schedule.running.remove(sequence)
    release(schedule, sequence)
    enqueue(schedule, sequence)


def release(schedule: Schedule, sequence: Sequence) -> None:
    """Gives back pages, locks, pins and the slot."""
    kept = keep_unfinished_page(schedule, sequence) if sequence.own_pages else False
    schedule.pages.free(sequence.page_table[len(sequence.nodes) + kept : sequence.pages].tolist())
    if sequence.copies is not None:
        schedule.pages.unlock([sequence.copies])
    if sequence.resumes_at is not None:
        schedule.pages.unpin_state(sequence.resumes_at)
    schedule.pages.unlock(sequence.nodes)
    for entry in sequence.pinned.values():
        schedule.embeddings.unpin(entry)
    if sequence.slot >= 0:
        schedule.free_slots.append(sequence.slot)
    sequence.nodes, sequence.own_pages, sequence.computed, sequence.pinned, sequence.slot = [], 0, 0, {}, -1
    sequence.copies, sequence.resumes_at = None, None
    forget(schedule, sequence)
    sequence.drafts = ()  # they were made for where it stood


def enqueue(schedule: Schedule, sequence: Sequence) -> None:
    sequence.status = Status.WAITING
    sequence.waiting_since = schedule.step
    schedule.changes += 1
    schedule.waiting.insert(by_rank(schedule.waiting, sequence), sequence)
    schedule.queue_order.append((schedule.step, sequence))


def _start_waiting(schedule: Schedule, plan: _Plan) -> None:
    """Starts waiting sequences in order of rank until one does not fit; nobody overtakes it, so nobody starves. Those that wait
    for pixels are passed over."""
    position = 0
    while position < len(schedule.waiting) and plan.tokens_left and plan.prompt_tokens_left:
        sequence = schedule.waiting[position]
        awaits_pixels = _awaits_pixels(schedule, sequence)
        plan.awaits_pixels |= awaits_pixels
        if not sequence.may_start or sequence.has_its_last or awaits_pixels:
            position += 1
            continue
        if sequence.waiting_since == schedule.step:
            return  # preempted in this very step
        if not _find_slot(schedule, plan, sequence):
            return
        if not _start(schedule, plan, sequence):
            if not _awaits_pixels(schedule, sequence):
                return
            position += 1


def _find_slot(schedule: Schedule, plan: _Plan, sequence: Sequence) -> bool:
    """Whether one more may run; one that waits for pixels gives its place up."""
    if len(schedule.running) < schedule.limits.max_sequences:
        return True
    stalled = next((s for s in reversed(schedule.running) if s.id not in plan.planned and _awaits_pixels(schedule, s)), None)
    if stalled is not None:
        preempt(schedule, stalled)
    return stalled is not None


def _start_starving(schedule: Schedule, plan: _Plan) -> None:
    """Starts the sequence that has waited longest before anything else, once it has waited too long.

    A place is taken for it only from one that has itself run that long and got a token since it started, so each gets its turn
    and no turn is in vain: what is computed may be lost with the place, the answer is not.
    """
    order, patience = schedule.queue_order, schedule.limits.starvation_steps
    while order and not _waits_since(order[0][1], order[0][0]):
        order.popleft()
    # Followers that may not start yet are passed over, their leader may be behind them; and who waits for pixels.
    able = (s for since, s in order if _waits_since(s, since) and s.may_start and not _awaits_pixels(schedule, s))
    sequence = next(able, None)
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
    nodes = known_prefix(schedule, sequence)
    schedule.pages.lock(nodes)
    sequence.nodes = list(nodes)
    sequence.page_table[: len(nodes)] = [node.page for node in nodes]
    # With every token cached the last is computed again, for its logits; its key and value go to the scratch page.
    sequence.computed = min(len(nodes) * sequence.page_size, len(sequence) - 1)
    _begin_page(schedule, sequence)
    if schedule.states is not None:
        if nodes:
            schedule.pages.pin_state(nodes[-1])
            sequence.resumes_at = nodes[-1]
        known = len(schedule.pages.match(sequence.keys)) * sequence.page_size
        plan_snapshots(schedule.states, sequence, known)
    if not _give_tokens(schedule, plan, sequence):
        release(schedule, sequence)
        return False
    schedule.waiting.remove(sequence)
    schedule.running.insert(by_rank(schedule.running, sequence), sequence)
    schedule.changes += 1
    sequence.slot = schedule.free_slots.pop()
    sequence.status = Status.RUNNING
    sequence.running_since = schedule.step
    sequence.output_at_start = len(sequence.output)
    if not sequence.starts:
        sequence.cached_tokens = min(sequence.computed, len(sequence.request))
    sequence.starts += 1
    return True


def _begin_page(schedule: Schedule, sequence: Sequence) -> None:
    """The page after the shared ones begins with what is known of it: copied with the sequence's first step or, if the page
    that knows it is the last one to be had, in that page itself."""
    beginning = known_beginning(schedule, sequence, sequence.nodes)
    if beginning is None:
        return
    node, pages = beginning.node, schedule.pages
    if node.locks == 0 and pages.available_pages == 1:
        sequence.page_table[len(sequence.nodes)] = pages.take_over(node)
        sequence.own_pages = 1
    else:
        pages.lock([node])
        sequence.copies = node
    sequence.computed = min(sequence.computed + beginning.count, len(sequence) - 1)


def _encode_ahead(schedule: Schedule, plan: _Plan) -> None:
    """Spends what is left of the patch budget on images of the next waiting sequences, in at most half of the cache."""
    budget = min(schedule.limits.lookahead_patches, plan.patches_left)
    cache, queue = schedule.embeddings, schedule.waiting[:AHEAD_SEQUENCES]
    side_stream = not encodes_in_line(schedule, plan)
    wanted = {key for sequence in queue for key in sequence.item_keys}
    schedule.ahead = {key for key in schedule.ahead & wanted if cache.lookup(key) is not None}
    kept = blocks_ahead = sum(len(entry.blocks) for key in schedule.ahead if (entry := cache.lookup(key)) is not None)
    for sequence in queue:
        missing = [i for i, key in enumerate(sequence.item_keys) if cache.lookup(key) is None]
        if not missing or sequence.request.items[missing[0]].patches > budget:
            continue
        covered = cached_tokens(schedule, sequence)
        for index in missing:
            key, item = sequence.item_keys[index], sequence.request.items[index]
            if sequence.item_ends[index] <= covered or cache.lookup(key) is not None:
                continue
            if _lacks_pixels(schedule, key, item):
                continue
            blocks = -(-item.rows // cache.block_rows)
            # `kept` spares what was encoded ahead before: one image ahead in another's place would be encoded in turns.
            fits = 2 * (blocks_ahead + blocks) <= cache.blocks and cache.can_reserve(item.rows, spare=kept)
            if item.patches > budget or not fits:
                return
            _reserve(schedule, plan, key, sequence, index, side_stream)
            schedule.ahead.add(key)
            budget -= item.patches
            blocks_ahead += blocks
