"""Chunks of a step to the ForwardBatch the model reads. Built on the host with numpy, then sent to the device."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.cache.embeddings import EmbeddingCache
from sightline.models.inputs import ForwardBatch, WantedTokens
from sightline.ops.pages import GatheringRoom
from sightline.ops.sequences import PagedSequences
from sightline.schedule.state import Chunk
from sightline.vision.transfer import send

_NONE: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True)
class PackedBatch:
    """A ForwardBatch on the host; fields as there and in its sequences."""

    token_ids: NDArray[np.int64]  # tokens in flight are places among those sampled last, counted down from -1
    positions: NDArray[np.int32]
    slots: NDArray[np.int64]
    page_table: NDArray[np.int32]
    query_starts: NDArray[np.int32]
    context_lengths: NDArray[np.int32]
    query_lengths_host: tuple[int, ...]
    context_lengths_host: tuple[int, ...]
    row_index: NDArray[np.int64]
    has_rows: bool
    sampling: NDArray[np.int64]  # sequences whose newest token's logits are wanted

    @property
    def wanted_index(self) -> NDArray[np.int64]:
        """Those tokens."""
        return self.query_starts[1:][self.sampling].astype(np.int64) - 1

    def on(self, device: torch.device, vision_rows: torch.Tensor, room: GatheringRoom | None = None) -> ForwardBatch:
        return ForwardBatch(
            token_ids=send(self.token_ids, device),
            positions=send(self.positions, device),
            slots=send(self.slots, device),
            sequences=PagedSequences(
                page_table=send(self.page_table, device),
                query_starts=send(self.query_starts, device),
                context_lengths=send(self.context_lengths, device),
                query_lengths_host=self.query_lengths_host,
                context_lengths_host=self.context_lengths_host,
                room=room,
            ),
            vision_rows=vision_rows if self.has_rows else None,
            row_index=send(self.row_index, device) if self.has_rows else None,
            wanted=WantedTokens(
                index=send(self.wanted_index, device),
                sequence=send(self.sampling, device),
                query_starts=torch.arange(len(self.sampling) + 1, dtype=torch.int32, device=device),
                context_lengths=send(self.context_lengths[self.sampling], device),
                context_lengths_host=tuple(self.context_lengths_host[number] for number in self.sampling),
            ),
        )


def pack_batch(chunks: Seq[Chunk], embeddings: EmbeddingCache, in_flight: Mapping[int, int] = _NONE) -> PackedBatch:
    """Sequences stand in the order of the chunks; logits are wanted for the last token of each chunk that samples.

    `in_flight` says where the newest token of a sequence (by id) stands among those that the device has sampled last, if the
    host does not know it yet.
    """
    counts = [chunk.count for chunk in chunks]
    starts = np.concatenate(([0], np.cumsum(counts)))
    contexts = [chunk.start + chunk.count for chunk in chunks]
    total = int(starts[-1])
    token_ids = np.empty(total, np.int64)
    positions = np.empty((3, total), np.int32)
    slots = np.empty(total, np.int64)
    row_index = np.full(total, -1, np.int64)
    any_rows = False
    decoding: list[int] = []  # places of chunks of one token of an answer; most chunks are, so they are filled in all at once
    for number, chunk in enumerate(chunks):
        if chunk.count == 1 and chunk.start >= len(chunk.sequence.request):
            decoding.append(number)
            continue
        part = slice(int(starts[number]), int(starts[number + 1]))
        token_ids[part] = chunk.sequence.tokens(chunk.start, chunk.start + chunk.count)
        positions[:, part] = _positions(chunk)
        slots[part] = _slots(chunk)
        any_rows |= _fill_rows(chunk, embeddings, row_index[part])
    if decoding:
        at = starts[decoding]
        newest = [_newest(chunks[number], in_flight) for number in decoding]
        token_ids[at], positions[:, at], slots[at] = np.array(newest, np.int64).T
    return PackedBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        page_table=_page_table(chunks, contexts),
        query_starts=starts.astype(np.int32),
        context_lengths=np.array(contexts, np.int32),
        query_lengths_host=tuple(counts),
        context_lengths_host=tuple(contexts),
        row_index=row_index,
        has_rows=any_rows,
        sampling=np.array([number for number, chunk in enumerate(chunks) if chunk.samples], np.int64),
    )


def known_tokens(token_ids: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """token_ids [tokens] with what stands in flight taken from `sampled` [n], the tokens of the step before."""
    return torch.where(token_ids < 0, sampled[(-1 - token_ids).clamp(min=0)], token_ids)


def _newest(chunk: Chunk, in_flight: Mapping[int, int]) -> tuple[int, int, int]:
    """(token id, position, slot) of a chunk that is one token of an answer."""
    sequence, token = chunk.sequence, chunk.start
    page, offset = divmod(token, sequence.page_size)
    own = offset if page < len(sequence.nodes) else int(sequence.page_table[page]) * sequence.page_size + offset
    request = sequence.request
    place = token - len(request)
    token_id = sequence.output[place] if place < len(sequence.output) else -1 - in_flight[sequence.id]
    return token_id, token + request.position_delta, own


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


def _fill_rows(chunk: Chunk, embeddings: EmbeddingCache, row_index: NDArray[np.int64]) -> bool:
    """Writes the arena's rows for the chunk's vision tokens into row_index. True if there are any."""
    end = chunk.start + chunk.count
    found = False
    for number in chunk.sequence.spans_meeting(chunk.start, end):
        span = chunk.sequence.request.spans[number]
        first, last = max(span.start, chunk.start), min(span.start + span.count, end)
        entry = chunk.sequence.pinned[span.item]
        slots = embeddings.row_slots(entry, span.row + first - span.start, last - first)
        row_index[first - chunk.start : last - chunk.start] = slots
        found = True
    return found
