"""A planned step as a StepInput: arrays and plain values for a worker, made with numpy, once."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from sightline.cache.embeddings import EmbeddingCache
from sightline.engine.sequence_output import SequenceOutput
from sightline.schedule.snapshots import slot_of
from sightline.schedule.state import Chunk, Sequence, Step
from sightline.worker.step_input import PackedBatch, SamplingRow, SlotReset, StepInput


def pack_step(
    step: Step, answers: Mapping[int, SequenceOutput], embeddings: EmbeddingCache, snapshots: Mapping[int, int]
) -> StepInput:
    """`answers` by sequence id; `snapshots`: slots for the states of some of them after the step, by sequence id.

    What a worker is to count for penalties counts as told.
    """
    rows: list[SamplingRow] = []
    resets: list[SlotReset] = []
    masked: list[int] = []
    for chunk in step.chunks:
        if not chunk.logits:
            continue
        answer = answers[chunk.sequence.id]
        if answer.grammar is not None:
            masked.append(len(rows))
        if answer.sampling.penalised and (reset := answer.new_slot()) is not None:
            resets.append(reset)
        rows += answer.sampling_rows(chunk.drafts)
    return StepInput(
        number=step.number,
        batch=pack_batch(step.chunks, embeddings),
        rows=tuple(rows),
        resets=tuple(resets),
        masked=tuple(masked),
        copy_pages=page_copies(step.chunks),
        restore_states=_pairs((slot_of(s.resumes_at), s.slot) for s in _sequences(step) if s.resumes_at is not None),
        save_states=_pairs((s.slot, snapshots[s.id]) for s in _sequences(step) if s.id in snapshots),
    )


def page_copies(chunks: Iterable[Chunk]) -> NDArray[np.int64] | None:
    """Pages that sequences go on in, [n, 2]: from the page of the tree whose beginning they share, to their own first one."""
    sequences = (chunk.sequence for chunk in chunks)
    return _pairs((s.copies.page, int(s.page_table[len(s.nodes)])) for s in sequences if s.copies is not None)


def _sequences(step: Step) -> Iterator[Sequence]:
    return (chunk.sequence for chunk in step.chunks)


def _pairs(pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64] | None:
    found = list(pairs)
    return np.array(found, np.int64) if found else None


def pack_batch(chunks: Seq[Chunk], embeddings: EmbeddingCache) -> PackedBatch:
    """Sequences stand in the order of the chunks."""
    counts = [chunk.count for chunk in chunks]
    starts = np.concatenate(([0], np.cumsum(counts)))
    contexts = [chunk.start + chunk.count for chunk in chunks]
    total = int(starts[-1])
    token_ids = np.empty(total, np.int64)
    positions = np.empty((3, total), np.int32)
    slots = np.empty(total, np.int64)
    embedding_index = np.full(total, -1, np.int64)
    any_rows = False
    decoding: list[int] = []  # places of chunks of one token of an answer; most chunks are, so they are filled in all at once
    logits_sequence: list[int] = []
    logits_offset: list[int] = []
    for number, chunk in enumerate(chunks):
        logits_sequence += [number] * len(chunk.logits)
        logits_offset += chunk.logits
        if chunk.count == 1 and chunk.start >= chunk.sequence.prompt_tokens:
            decoding.append(number)
            continue
        part = slice(int(starts[number]), int(starts[number + 1]))
        token_ids[part] = _tokens(chunk)
        positions[:, part] = _positions(chunk)
        slots[part] = _slots(chunk)
        any_rows |= _fill_rows(chunk, embeddings, embedding_index[part])
    if decoding:
        at = starts[decoding]
        newest = [_newest(chunks[number]) for number in decoding]
        token_ids[at], positions[:, at], slots[at] = np.array(newest, np.int64).T
    in_sequence = np.array(logits_sequence, np.int64)
    return PackedBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        page_table=_page_table(chunks, contexts),
        query_starts=starts.astype(np.int32),
        context_lengths=np.array(contexts, np.int32),
        query_lengths_host=tuple(counts),
        context_lengths_host=tuple(contexts),
        embedding_index=embedding_index,
        has_rows=any_rows,
        logits_index=starts[in_sequence] + np.array(logits_offset, np.int64),
        logits_sequence=in_sequence,
        state_slots=np.array([chunk.sequence.slot for chunk in chunks], np.int64),
        adapter_index=_adapters(chunks, counts),
    )


def _adapters(chunks: Seq[Chunk], counts: Seq[int]) -> NDArray[np.int64] | None:
    used = [chunk.sequence.request.adapter for chunk in chunks]
    return np.repeat(np.array(used, np.int64), counts) if max(used) >= 0 else None


def _newest(chunk: Chunk) -> tuple[int, int, int]:
    """(token id, position, slot) of a chunk that is one token of an answer. A token in flight is -1 - its sequence's slot."""
    sequence, token = chunk.sequence, chunk.start
    page, offset = divmod(token, sequence.page_size)
    own = offset if page < len(sequence.nodes) else int(sequence.page_table[page]) * sequence.page_size + offset
    index = token - sequence.prompt_tokens
    token_id = sequence.output[index] if index < len(sequence.output) else -1 - sequence.slot
    return token_id, token + sequence.request.position_delta, own


def _tokens(chunk: Chunk) -> NDArray[np.int32]:
    known = chunk.sequence.tokens(chunk.start, chunk.start + chunk.count - len(chunk.drafts))
    return np.concatenate((known, np.array(chunk.drafts, np.int32))) if chunk.drafts else known


def _page_table(chunks: Seq[Chunk], contexts: Seq[int]) -> NDArray[np.int32]:
    """Page numbers of each sequence, as many as its context needs, zeros after. [sequences, most pages]"""
    needed = [-(-context // chunk.sequence.page_size) for chunk, context in zip(chunks, contexts, strict=True)]
    table = np.zeros((len(chunks), max(needed)), np.int32)
    for row, chunk, pages in zip(table, chunks, needed, strict=True):
        row[:pages] = chunk.sequence.page_table[:pages]
    return table


def _positions(chunk: Chunk) -> NDArray[np.int32]:
    request, end = chunk.sequence.request, chunk.start + chunk.count
    inside = request.positions[:, chunk.start : end]
    if end <= len(request):
        return inside
    answer = np.arange(max(chunk.start, len(request)), end, dtype=np.int32) + request.position_delta
    return np.concatenate((inside, np.broadcast_to(answer, (3, len(answer)))), axis=1)


def _slots(chunk: Chunk) -> NDArray[np.int64]:
    """Where keys and values go. A token inside a shared page is stored there already, so it goes to the scratch page 0."""
    sequence = chunk.sequence
    token = np.arange(chunk.start, chunk.start + chunk.count)
    page, offset = np.divmod(token, sequence.page_size)
    own = sequence.page_table[page] * np.int64(sequence.page_size) + offset
    shared = page < len(sequence.nodes)
    return np.where(shared, offset, own)


def _fill_rows(chunk: Chunk, embeddings: EmbeddingCache, embedding_index: NDArray[np.int64]) -> bool:
    """Writes the embedding slots of the chunk's vision tokens into embedding_index. True if there are any."""
    end = chunk.start + chunk.count
    found = False
    for number in chunk.sequence.spans_meeting(chunk.start, end):
        span = chunk.sequence.request.spans[number]
        first, last = max(span.start, chunk.start), min(span.start + span.count, end)
        entry = chunk.sequence.pinned[span.item]
        slots = embeddings.row_slots(entry, span.row + first - span.start, last - first)
        embedding_index[first - chunk.start : last - chunk.start] = slots
        found = True
    return found
