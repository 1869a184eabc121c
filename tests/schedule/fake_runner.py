"""A model and a runner without numbers: what is stored for a token is a hash of all that a real model's would depend on.

The one idea: what a real model stores for a token depends on the whole prefix, so this one stores a hash of the whole prefix
(tenant, tokens, rows of items). A wrong, stale or evicted page, another tenant's page, a row of another image: each reads back
as another number. The next token is a hash of the prefix too, so an answer can be computed without a scheduler and compared.
"""

from dataclasses import dataclass

import torch

from sightline.cache.embeddings import EmbeddingCache
from sightline.engine.pack import pack_batch, page_copies
from sightline.schedule.snapshots import slot_of
from sightline.schedule.state import Chunk, ScheduledEncode, Sequence
from sightline.worker.batch import known_tokens, to_device

VOCABULARY = 12
ROW_BYTES = 4
_MASK = (1 << 61) - 1


@dataclass(frozen=True)
class SimulatedMemory:
    pages: int  # without the scratch page
    page_size: int
    blocks: int
    block_rows: int = 1
    host_bytes: int = 0


# ---- What a model would compute


def _mix(*numbers: int) -> int:
    value = 0x9E3779B97F4A7C15
    for number in numbers:
        value = ((value ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
        value ^= value >> 29
    return value


def _number(key: bytes) -> int:
    return int.from_bytes(key[-7:], "little")


def _next_token(value: int, index: int) -> int:
    return 1 + _mix(value, index) % (VOCABULARY - 1)


@dataclass
class Truth:
    """What a sequence's tokens, keys and values and answer must be; computed without a scheduler."""

    values: list[int]  # of prompt and answer, [tokens]; the last token of the answer is never computed
    rows: dict[int, tuple[bytes, int]]  # by position: the item's key in the embedding cache and its row
    output: list[int]


def truth_of(sequence: Sequence, index: int, end_token: int | None) -> Truth:
    request = sequence.request
    rows = {span.start + i: (sequence.item_keys[span.item], span.row + i) for span in request.spans for i in range(span.count)}
    values: list[int] = []
    value = _number(sequence.root)
    for position, token in enumerate(request.token_ids.tolist()):
        value = _value_of(value, token, rows.get(position))
        values.append(value)
    output: list[int] = []
    while len(output) < sequence.max_tokens and end_token not in output:
        output.append(_next_token(value, index))
        value = _value_of(value, output[-1], None)
        values.append(value)
    return Truth(values, rows, output)


def _value_of(before: int, token: int, row: tuple[bytes, int] | None) -> int:
    return _mix(before, token) if row is None else _mix(before, token, _number(row[0]), row[1])


# ---- Executing steps


class FakeRunner:
    """Memory of keys and values, the arena and the host tier; executes steps in the order of the real runner."""

    def __init__(self, memory: SimulatedMemory, embeddings: EmbeddingCache, real_batches: bool) -> None:
        self.page_size = memory.page_size
        self.embeddings = embeddings
        self.real_batches = real_batches  # slots, pages and rows from pack_batch instead of from here
        self.kv: list[int | None] = [None] * ((memory.pages + 1) * memory.page_size)
        self.arena: list[tuple[bytes, int] | None] = [None] * (memory.blocks * memory.block_rows)
        self.block_rows = memory.block_rows
        self.host: dict[bytes, list[tuple[bytes, int] | None]] = {}
        self.encoded: list[bytes] = []  # keys, in order
        self.restored: list[bytes] = []
        self.copied = 0  # pages
        self.states: dict[int, int] = {}  # by slot: of a recurrent layer, the value of the token that it took last
        self.sampled: dict[int, int] = {}  # by slot: the token sampled last, as the device would keep it

    def encode(self, encodes: tuple[ScheduledEncode, ...], broken: frozenset[bytes], crash: bool) -> set[bytes]:
        """Keys of the entries that failed."""
        for encode in encodes:
            for offload in encode.offloads:
                slots = [block * self.block_rows + i for block in offload.blocks for i in range(self.block_rows)]
                saved = [self.arena[slot] for slot in slots[: offload.rows]]
                assert saved == [(offload.key, row) for row in range(offload.rows)], "other rows are offloaded"
                self.host[offload.key] = saved
        for encode in encodes:
            if encode.from_host:
                self._store(encode, self.host[encode.entry.key])
                self.restored.append(encode.entry.key)
        for key in self.embeddings.host_evicted():
            self.host.pop(key, None)
        if crash:
            return {encode.entry.key for encode in encodes}
        failed = set()
        for encode in encodes:
            if encode.from_host:
                continue
            self.encoded.append(encode.entry.key)
            if encode.item.key in broken:
                failed.add(encode.entry.key)
            else:
                self._store(encode, [(encode.entry.key, row) for row in range(encode.entry.rows)])
        return failed

    def _store(self, encode: ScheduledEncode, rows: list[tuple[bytes, int] | None]) -> None:
        for slot, row in zip(self.embeddings.row_slots(encode.entry, 0, encode.entry.rows).tolist(), rows, strict=True):
            self.arena[slot] = row

    def compute(self, chunks: tuple[Chunk, ...], truths: dict[int, Truth], indices: dict[int, int]) -> dict[int, list[int]]:
        """Copies pages, writes all chunks, then reads each sequence's whole context back. Returns sampled tokens."""
        self._copy_pages(chunks)
        places = self._real_places(chunks) if self.real_batches else [self._places(chunk) for chunk in chunks]
        values: list[list[int]] = []  # of each chunk's tokens, drafts included
        for chunk, (slots, _, rows) in zip(chunks, places, strict=True):
            truth, sequence = truths[chunk.sequence.id], chunk.sequence
            before = truth.values[chunk.start - 1] if chunk.start else _number(sequence.root)
            values.append([])
            for offset, (token, slot) in enumerate(zip(self._tokens(chunk), slots, strict=True)):
                found = self.arena[rows[offset]] if offset in rows else None
                assert found == truth.rows.get(chunk.start + offset), f"token {chunk.start + offset} takes the row {found}"
                before = self.kv[slot] = _value_of(before, token, found)
                values[-1].append(before)
        self._last_values = {chunk.sequence.id: own[-1] for chunk, own in zip(chunks, values, strict=True)}
        sampled = {}
        for chunk, (_, context, _), own in zip(chunks, places, values, strict=True):
            sure = chunk.start + chunk.count - len(chunk.drafts)
            read = [self.kv[slot] for slot in context[:sure]]
            assert read == truths[chunk.sequence.id].values[:sure], f"sequence {chunk.sequence.id} reads what is not its own"
            if chunk.samples:
                index = indices[chunk.sequence.id]
                sampled[chunk.sequence.id] = [_next_token(own[offset], index) for offset in chunk.logits]
                self.sampled[chunk.sequence.slot] = sampled[chunk.sequence.id][0]
        return sampled

    def _copy_pages(self, chunks: tuple[Chunk, ...]) -> None:
        """Whole pages, with what nobody may read of them."""
        pairs = page_copies(chunks)
        if pairs is None:
            return
        sources, targets = pairs.T.tolist()
        assert not set(sources) & set(targets) and len(set(targets)) == len(targets), "a page is overwritten while it is copied"
        size, before = self.page_size, list(self.kv)
        for source, target in zip(sources, targets, strict=True):
            self.kv[target * size : (target + 1) * size] = before[source * size : (source + 1) * size]
        self.copied += len(sources)

    def restore_states(self, chunks: tuple[Chunk, ...], truths: dict[int, Truth]) -> None:
        """Before a step: states that sequences go on from are copied to their slots, and must be what they left there."""
        for chunk in chunks:
            if chunk.sequence.resumes_at is not None:
                self.states[chunk.sequence.slot] = self.states[slot_of(chunk.sequence.resumes_at)]
        for chunk in chunks:
            if chunk.start:
                before = truths[chunk.sequence.id].values[chunk.start - 1]
                assert self.states[chunk.sequence.slot] == before, f"sequence {chunk.sequence.id} goes on from another state"

    def save_states(self, chunks: tuple[Chunk, ...], slots: dict[int, int]) -> None:
        """After a step: states have taken its tokens, and those that are to be kept are copied."""
        for chunk in chunks:
            self.states[chunk.sequence.slot] = self._last_values[chunk.sequence.id]
        for chunk in chunks:
            if chunk.sequence.id in slots:
                self.states[slots[chunk.sequence.id]] = self.states[chunk.sequence.slot]

    def _tokens(self, chunk: Chunk) -> list[int]:
        """Of the chunk; one that nobody has read is what the step before sampled."""
        sequence, end = chunk.sequence, chunk.start + chunk.count - len(chunk.drafts)
        if end <= sequence.known:
            return [*sequence.tokens(chunk.start, end).tolist(), *chunk.drafts]
        assert chunk.count == 1, "only the newest token can be in flight"
        return [self.sampled[sequence.slot]]

    def _places(self, chunk: Chunk) -> tuple[list[int], list[int], dict[int, int]]:
        """Slots of the chunk's tokens, slots of the whole context, and the arena's slots by offset into the chunk."""
        sequence, size, end = chunk.sequence, self.page_size, chunk.start + chunk.count
        pages = sequence.page_table.tolist()
        context = [pages[position // size] * size + position % size for position in range(end)]
        shared = len(sequence.nodes) * size
        slots = [position % size if position < shared else context[position] for position in range(chunk.start, end)]
        rows = {}
        for span in sequence.request.spans:
            for i in range(max(span.start, chunk.start), min(span.start + span.count, end)):
                row = span.row + i - span.start
                block = sequence.pinned[span.item].blocks[row // self.block_rows]
                rows[i - chunk.start] = block * self.block_rows + row % self.block_rows
        return slots, context, rows

    def _real_places(self, chunks: tuple[Chunk, ...]) -> list[tuple[list[int], list[int], dict[int, int]]]:
        batch = to_device(pack_batch(chunks, self.embeddings), torch.device("cpu"), torch.zeros(1))
        kept = torch.zeros(max((*self.sampled, 0)) + 1, dtype=torch.int64)
        for slot, token in self.sampled.items():
            kept[slot] = token
        token_ids = known_tokens(batch.token_ids, kept)
        starts, size = batch.sequences.query_starts.tolist(), self.page_size
        logits = [(number, offset) for number, chunk in enumerate(chunks) for offset in chunk.logits]
        logits_indices = batch.logits_indices
        assert logits_indices.index.tolist() == [starts[number] + offset for number, offset in logits]
        assert logits_indices.sequence.tolist() == [number for number, _ in logits]
        assert logits_indices.context_lengths.tolist() == [chunks[number].start + offset + 1 for number, offset in logits]
        found = []
        for number, chunk in enumerate(chunks):
            part = slice(starts[number], starts[number + 1])
            end = chunk.start + chunk.count
            assert token_ids[part].tolist() == self._tokens(chunk)
            pages = batch.sequences.page_table[number].tolist()
            context = [pages[position // size] * size + position % size for position in range(end)]
            index = batch.embedding_index[part].tolist() if batch.embedding_index is not None else []
            rows = {offset: row for offset, row in enumerate(index) if row >= 0}
            found.append((batch.slots[part].tolist(), context, rows))
        return found
