"""A model and a runner without numbers: what is stored for a token is a hash of all that a real model's would depend on.

The one idea: what a real model stores for a token depends on the whole prefix, so this one stores a hash of the whole prefix
(tenant, tokens, rows of items). A wrong, stale or evicted page, another tenant's page, a row of another image: each reads back
as another number. The next token is a hash of the prefix too, so an answer can be computed without a scheduler and compared.
"""

from dataclasses import dataclass

import torch

from sightline.cache.embeddings import EmbeddingCache
from sightline.run.batch import known_tokens, pack_batch
from sightline.schedule.state import Chunk, Encode, Sequence

VOCABULARY = 12
ROW_BYTES = 4
_MASK = (1 << 61) - 1


@dataclass(frozen=True)
class Memory:
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

    def __init__(self, memory: Memory, embeddings: EmbeddingCache, real_batches: bool) -> None:
        self.page_size = memory.page_size
        self.embeddings = embeddings
        self.real_batches = real_batches  # slots, pages and rows from pack_batch instead of from here
        self.kv: list[int | None] = [None] * ((memory.pages + 1) * memory.page_size)
        self.arena: list[tuple[bytes, int] | None] = [None] * (memory.blocks * memory.block_rows)
        self.block_rows = memory.block_rows
        self.host: dict[bytes, list[tuple[bytes, int] | None]] = {}
        self.encoded: list[bytes] = []  # keys, in order
        self.restored: list[bytes] = []
        self.sampled: dict[int, int] = {}  # by the last step, as the device would keep it

    def encode(self, encodes: tuple[Encode, ...], broken: frozenset[bytes], crash: bool) -> set[bytes]:
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

    def _store(self, encode: Encode, rows: list[tuple[bytes, int] | None]) -> None:
        for slot, row in zip(self.embeddings.row_slots(encode.entry, 0, encode.entry.rows).tolist(), rows, strict=True):
            self.arena[slot] = row

    def compute(self, chunks: tuple[Chunk, ...], truths: dict[int, Truth], indices: dict[int, int]) -> dict[int, int]:
        """Writes all chunks, then reads each sequence's whole context back. Returns sampled tokens."""
        places = self._real_places(chunks) if self.real_batches else [self._places(chunk) for chunk in chunks]
        for chunk, (slots, _, rows) in zip(chunks, places, strict=True):
            truth, sequence = truths[chunk.sequence.id], chunk.sequence
            before = truth.values[chunk.start - 1] if chunk.start else _number(sequence.root)
            tokens = self._tokens(chunk)
            for offset, (token, slot) in enumerate(zip(tokens, slots, strict=True)):
                found = self.arena[rows[offset]] if offset in rows else None
                assert found == truth.rows.get(chunk.start + offset), f"token {chunk.start + offset} takes the row {found}"
                before = self.kv[slot] = _value_of(before, token, found)
        sampled = {}
        for chunk, (_, context, _) in zip(chunks, places, strict=True):
            end = chunk.start + chunk.count
            read = [self.kv[slot] for slot in context]
            assert read == truths[chunk.sequence.id].values[:end], f"sequence {chunk.sequence.id} reads what is not its own"
            if chunk.samples:
                sampled[chunk.sequence.id] = _next_token(truths[chunk.sequence.id].values[end - 1], indices[chunk.sequence.id])
        self.sampled = sampled
        return dict(sampled)

    def _tokens(self, chunk: Chunk) -> list[int]:
        """Of the chunk; one that nobody has read is what the step before sampled."""
        sequence, end = chunk.sequence, chunk.start + chunk.count
        if end <= sequence.known:
            return sequence.tokens(chunk.start, end).tolist()
        assert chunk.count == 1, "only the newest token can be in flight"
        return [self.sampled[sequence.id]]

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
        places = {sequence: place for place, sequence in enumerate(self.sampled)}
        batch = pack_batch(chunks, self.embeddings, places).on(torch.device("cpu"), torch.zeros(1))
        token_ids = known_tokens(batch.token_ids, torch.tensor([*self.sampled.values(), 0]))
        starts, size = batch.sequences.query_starts.tolist(), self.page_size
        sampling = [number for number, chunk in enumerate(chunks) if chunk.samples]
        ends = [chunks[number].start + chunks[number].count for number in sampling]
        wanted = batch.wanted
        assert wanted.index.tolist() == [starts[number + 1] - 1 for number in sampling]
        assert (wanted.sequence.tolist(), wanted.context_lengths.tolist()) == (sampling, ends)
        found = []
        for number, chunk in enumerate(chunks):
            part = slice(starts[number], starts[number + 1])
            end = chunk.start + chunk.count
            assert token_ids[part].tolist() == self._tokens(chunk)
            pages = batch.sequences.page_table[number].tolist()
            context = [pages[position // size] * size + position % size for position in range(end)]
            index = batch.row_index[part].tolist() if batch.row_index is not None else []
            rows = {offset: row for offset, row in enumerate(index) if row >= 0}
            found.append((batch.slots[part].tolist(), context, rows))
        return found
