"""What happens to the schedule around a step: requests arrive, a step's results come in, sequences end."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

from sightline.cache.embeddings import EmbeddingState
from sightline.errors import PromptError
from sightline.schedule.plan import enqueue, release
from sightline.schedule.prefix import extend_keys, note_end_of_prompt
from sightline.schedule.snapshots import keep_of_answer
from sightline.schedule.state import Schedule, Sequence, Status, Step


def admit(schedule: Schedule, sequences: Iterable[Sequence]) -> None:
    """Queues sequences. One that could never run, even alone, is refused here, before anything is spent on it."""
    sequences = list(sequences)
    for sequence in sequences:
        needed, there = len(sequence.page_table), schedule.pages.usable_pages
        if needed > there:
            raise PromptError(
                f"The prompt's {len(sequence.request)} tokens and {sequence.max_tokens} of an answer need {needed} pages of "
                f"the key/value cache, which has {there}."
            )
        for item in sequence.request.items:
            if not schedule.embeddings.fits(item.rows):
                raise PromptError(
                    f"{item.ref.kind.capitalize()} {item.ref.source} needs {item.rows} embedding rows, more than the "
                    f"{schedule.embeddings.capacity_rows} that the embedding cache holds."
                )
    for sequence in sequences:
        enqueue(schedule, sequence)


def advance(schedule: Schedule, step: Step) -> None:
    """A step was launched: what it computes counts as there, because all that runs later runs after it. Drafts do not count
    before they are known to be right."""
    for chunk in step.chunks:
        sequence = chunk.sequence
        sequence.computed = chunk.start + chunk.count - len(chunk.drafts)
        if sequence.resumes_at is not None:  # copied before all that runs later
            schedule.pages.unpin_state(sequence.resumes_at)
            sequence.resumes_at = None
        if sequence.copies is not None:
            schedule.pages.unlock([sequence.copies])
            sequence.copies = None
        if chunk.logits:
            sequence.in_flight += 1
        _share_full_pages(schedule, sequence)
        if sequence.pinned:
            _unpin_consumed(schedule, sequence)


def encode_is_ready(schedule: Schedule, key: bytes) -> None:
    """The embeddings are in place, or ordered before everything that will read them."""
    schedule.encoding.pop(key, None)
    entry = schedule.embeddings.lookup(key)
    if entry is not None and entry.state is EmbeddingState.PENDING:
        schedule.embeddings.mark_ready(entry)


def abandon_encode(schedule: Schedule, key: bytes) -> None:
    """An item could not be encoded, now or ever. Who had pinned it has it no more."""
    schedule.encoding.pop(key, None)
    entry = schedule.embeddings.lookup(key)
    if entry is None or entry.state is EmbeddingState.READY:
        return
    for sequence in schedule.running if entry.pins else ():
        for index in [index for index, pinned in sequence.pinned.items() if pinned is entry]:
            schedule.embeddings.unpin(sequence.pinned.pop(index))
    schedule.embeddings.abandon(entry)


def take_tokens(schedule: Schedule, step: Step, sampled: Mapping[int, Seq[int]]) -> dict[int, Seq[int]]:
    """A launched step's results were read: `sampled` has the tokens of each sequence (by id) whose chunk sampled, one after its
    last known token and one after each draft. Returns those that count: a draft's only if the draft was right.

    Steps are read in the order they were launched. A sequence may have ended or been preempted since.
    """
    taken: dict[int, Seq[int]] = {}
    for chunk in step.chunks:
        sequence = chunk.sequence
        if not chunk.logits or sequence.status is Status.FINISHED:
            continue
        found = sampled[sequence.id]
        if chunk.drafts:
            found = accepted(chunk.drafts, found)
        taken[sequence.id] = found
        sequence.output.extend(found)
        sequence.in_flight -= 1
        if sequence.status is Status.RUNNING:
            if chunk.drafts:
                sequence.computed += len(found) - 1
            _share_full_pages(schedule, sequence)
            if sequence.awaits_node is not None:
                keep_of_answer(schedule, sequence)
    return taken


def accepted(drafts: Seq[int], tokens: Seq[int]) -> list[int]:
    """The tokens up to the first whose draft was wrong, and that token: it was sampled after right ones alone."""
    right = 0
    while right < len(drafts) and drafts[right] == tokens[right]:
        right += 1
    return [int(token) for token in tokens[: right + 1]]


def _share_full_pages(schedule: Schedule, sequence: Sequence) -> None:
    """Own pages of known tokens that are full and computed join the prefix tree; where another sequence was faster, its page
    is used."""
    full = min(sequence.computed, sequence.prompt_tokens + len(sequence.output)) // sequence.page_size
    if full <= len(sequence.nodes):
        return
    extend_keys(sequence)
    prompt_ends = sequence.prompt_tokens // sequence.page_size
    while len(sequence.nodes) < full:
        index = len(sequence.nodes)
        parent = sequence.nodes[-1] if sequence.nodes else None
        node = schedule.pages.insert(parent, sequence.keys[index], int(sequence.page_table[index]))
        sequence.page_table[index] = node.page
        sequence.nodes.append(node)
        sequence.own_pages -= 1
        if index == prompt_ends:
            note_end_of_prompt(schedule, sequence, node)


def _unpin_consumed(schedule: Schedule, sequence: Sequence) -> None:
    for index in [index for index in sequence.pinned if sequence.item_ends[index] <= sequence.computed]:
        schedule.embeddings.unpin(sequence.pinned.pop(index))


def finish(schedule: Schedule, sequence: Sequence) -> None:
    """Ends a sequence in whatever state it is: done, aborted or failed. What it computed stays in the prefix tree."""
    if sequence.status is Status.FINISHED:
        return
    line = schedule.running if sequence.status is Status.RUNNING else schedule.waiting
    line.remove(sequence)
    schedule.changes += 1
    if sequence.status is Status.RUNNING:
        release(schedule, sequence)
    sequence.status = Status.FINISHED
