"""What happens to the schedule around a step: requests arrive, a step's results come in, sequences end."""

from collections.abc import Iterable, Mapping

from sightline.cache.embeddings import EmbeddingEntry
from sightline.errors import PromptError
from sightline.schedule.plan import enqueue, extend_keys, release
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
    """A step was launched: what it computes and encodes counts as there, because all that runs later runs after it."""
    for encode in step.encodes:
        if not encode.aside:
            schedule.embeddings.mark_ready(encode.entry)
    for chunk in step.chunks:
        sequence = chunk.sequence
        sequence.computed = chunk.start + chunk.count
        sequence.in_flight += chunk.samples
        _share_full_pages(schedule, sequence)
        _unpin_consumed(schedule, sequence)


def finish_encodes(schedule: Schedule, keys: Iterable[bytes]) -> None:
    """Items that were encoded aside are there. Those that failed meanwhile are not among them any more."""
    for key in keys:
        entry = schedule.encoding.pop(key, None)
        if entry is not None:
            schedule.embeddings.mark_ready(entry)


def abandon_encode(schedule: Schedule, entry: EmbeddingEntry) -> None:
    """An item could not be encoded; nobody who needs it is in the schedule any more."""
    schedule.encoding.pop(entry.key, None)
    schedule.embeddings.abandon(entry)


def take_tokens(schedule: Schedule, step: Step, sampled: Mapping[int, int]) -> None:
    """A launched step's results were read: `sampled` has the token of each sequence (by id) whose chunk sampled.

    Steps are read in the order they were launched. A sequence may have ended or been preempted since.
    """
    for chunk in step.chunks:
        sequence = chunk.sequence
        if not chunk.samples or sequence.status is Status.FINISHED:
            continue
        sequence.output.append(sampled[sequence.id])
        sequence.in_flight -= 1
        if sequence.status is Status.RUNNING:
            _share_full_pages(schedule, sequence)


def _share_full_pages(schedule: Schedule, sequence: Sequence) -> None:
    """Own pages of known tokens that are full and computed join the prefix tree; where another sequence was faster, its page
    is used."""
    full = min(sequence.computed, sequence.known) // sequence.page_size
    if full <= len(sequence.nodes):
        return
    extend_keys(sequence)
    while len(sequence.nodes) < full:
        index = len(sequence.nodes)
        parent = sequence.nodes[-1] if sequence.nodes else None
        node = schedule.pages.insert(parent, sequence.keys[index], int(sequence.page_table[index]))
        sequence.page_table[index] = node.page
        sequence.nodes.append(node)
        sequence.own_pages -= 1


def _unpin_consumed(schedule: Schedule, sequence: Sequence) -> None:
    for index in [index for index in sequence.pinned if sequence.item_ends[index] <= sequence.computed]:
        schedule.embeddings.unpin(sequence.pinned.pop(index))


def finish(schedule: Schedule, sequence: Sequence) -> None:
    """Ends a sequence in whatever state it is: done, aborted or failed. What it computed stays in the prefix tree."""
    if sequence.status is Status.FINISHED:
        return
    line = schedule.running if sequence.status is Status.RUNNING else schedule.waiting
    line.remove(sequence)
    if sequence.status is Status.RUNNING:
        release(schedule, sequence)
    sequence.status = Status.FINISHED
