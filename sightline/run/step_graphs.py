"""Steps of the language model as CUDA graphs: decoding, and small chunks of prompts, whose launches outlast their work.

A graph is recorded for a bucket of sizes, and all that varies lies in buffers that are rewritten before each replay:

    decoding     one token each of up to 1, 2, 4, 8 … sequences, of about equal length or not
    mixed        up to 16, 32, … 2,304 tokens of up to 8 or 64 sequences, image rows among them

Longer steps keep the device busy for longer than the host takes to launch them one by one.

What a bucket has beyond the batch computes something that nobody reads: its tokens belong to no sequence (or to one without
context), and their keys and values go to the scratch page. All graphs share one pool of memory; each has its place for logits,
which its next replay overwrites: they are read before, because everything runs in the order of one stream.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.models.inputs import ForwardBatch, LayerCache, WantedTokens
from sightline.models.model import VisionLanguageModel
from sightline.ops.attention import paged_attention
from sightline.ops.capture import Capture, Replay
from sightline.ops.dispatch import twins_are_on
from sightline.ops.key_items import KeyItems, share_keys
from sightline.ops.pages import MOST_KEYS_AT_ONCE, is_worth_gathering
from sightline.ops.sequences import PagedSequences
from sightline.run.batch import PackedBatch, known_tokens
from sightline.vision.transfer import send

DECODING = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # sequences
UNEVEN = (8, 16, 32, 64, 128, 256)  # sequences, one of them much longer than the others: a list shares out their keys
_LONG = 8192  # tokens; a shorter context holds nobody up
_MUCH_LONGER = 4  # than the average
_SMALL_TOKENS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
MIXED_TOKENS = (*_SMALL_TOKENS, *range(1152, 2305, 128))
MIXED_SEQUENCES = (8, 64)
_KEY_PROGRAMS = 1024  # that keys of uneven sequences are shared out to, at least
_KEYS_OF_A_PART = 128  # or a multiple of it
_LIST, _WANTED = "key_items.", "wanted."


@dataclass(frozen=True)
class Bucket:
    tokens: int
    sequences: int
    decoding: bool  # one token of each sequence, no image rows
    uneven: bool = False  # for contexts of very different lengths


def buckets(max_sequences: int, max_tokens: int) -> list[Bucket]:
    """All that an engine with these limits can meet, the largest first."""
    decoding = _up_to(DECODING, min(max_sequences, max_tokens))
    found = [Bucket(count, count, True) for count in decoding]
    if decoding[-1] >= UNEVEN[0]:
        found += [Bucket(count, count, True, uneven=True) for count in _up_to(UNEVEN, decoding[-1])]
    counts = _up_to(MIXED_SEQUENCES, max_sequences)
    for tokens in _up_to(MIXED_TOKENS, max_tokens):
        # In large steps places of sequences that are not there cost nothing to speak of.
        fitting = counts[-1:] if tokens > _SMALL_TOKENS[-1] else [count for count in counts if count <= tokens]
        found += [Bucket(tokens, sequences, False) for sequences in fitting]
    return sorted(found, key=lambda bucket: (bucket.tokens, bucket.sequences, bucket.uneven), reverse=True)


def _is_uneven(contexts: tuple[int, ...]) -> bool:
    longest = max(contexts)
    return longest >= _LONG and longest * len(contexts) >= _MUCH_LONGER * sum(contexts)


def _gathers(batch: PackedBatch) -> bool:
    """Whether keys are better gathered before attention, which no graph does; the device is then busy for long enough."""
    return is_worth_gathering(batch.query_lengths_host, batch.context_lengths_host, MOST_KEYS_AT_ONCE)


def _up_to(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The sizes that are needed for anything up to `most`, as far as they go."""
    enough = next((place for place, size in enumerate(sizes) if size >= most), len(sizes) - 1)
    return sizes[: enough + 1]


class StepGraphs:
    def __init__(
        self,
        model: VisionLanguageModel,
        caches: list[LayerCache],
        vision_rows: torch.Tensor,
        capture: Capture,
        max_sequences: int,
        max_tokens: int,
        max_model_len: int,
    ) -> None:
        self._model, self._caches, self._vision_rows, self._capture = model, caches, vision_rows, capture
        self._device, self._longest = vision_rows.device, max_model_len
        self._buckets = buckets(max_sequences, max_tokens)
        most = max(bucket.sequences for bucket in self._buckets)
        pages = -(-max_model_len // caches[0].keys.shape[1])
        self._page_table = torch.zeros(most, pages, dtype=torch.int32, device=self._device)
        self.sampled = torch.zeros(max_sequences, dtype=torch.int64, device=self._device)  # tokens of the step before
        self._graphs: dict[Bucket, tuple[_Inputs, Replay, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    @torch.inference_mode()
    def record_all(self) -> None:
        for bucket in self._buckets:  # the largest first, so that the others find room in its memory
            self._recorded(bucket)

    def bucket_of(self, batch: PackedBatch) -> Bucket | None:
        tokens, sequences = len(batch.token_ids), len(batch.query_lengths_host)
        decoding = tokens == sequences and not batch.has_rows
        if tokens > _SMALL_TOKENS[-1] and _gathers(batch):
            return None
        fitting = [b for b in self._buckets if b.tokens >= tokens and b.sequences >= sequences and b.decoding == decoding]
        uneven = decoding and sequences > UNEVEN[0] // 2 and _is_uneven(batch.context_lengths_host)
        fitting = [bucket for bucket in fitting if bucket.uneven == uneven] or fitting
        return fitting[-1] if fitting else None

    @torch.inference_mode()
    def run(self, batch: PackedBatch) -> torch.Tensor | None:
        """Logits [wanted, vocab] of the batch, until the next run; None where no bucket fits, or definitions are to run."""
        bucket = self.bucket_of(batch) if twins_are_on() else None
        if bucket is None:
            return None
        inputs, replay, logits = self._recorded(bucket)
        inputs.fill(batch)
        rows, pages = batch.page_table.shape
        self._page_table[:rows, :pages].copy_(send(batch.page_table, self._device))
        replay()
        return logits[: len(batch.sampling)]

    def _recorded(self, bucket: Bucket) -> "tuple[_Inputs, Replay, torch.Tensor]":
        if bucket not in self._graphs:
            inputs = _Inputs(bucket, self._device, self._caches[0].keys.shape[2])
            static = self._static_batch(bucket, inputs)

            def compute() -> torch.Tensor:
                batch = replace(static, token_ids=known_tokens(static.token_ids, self.sampled))
                logits: torch.Tensor = self._model(batch, self._caches[: len(self._model.text.layers)])
                return logits

            def compile_kernels() -> None:
                with self._model.text.only_first(self._model.varied_layers):
                    compute()

            self._graphs[bucket] = (inputs, *self._capture(compute, compile_kernels))
        return self._graphs[bucket]

    def _static_batch(self, bucket: Bucket, inputs: "_Inputs") -> ForwardBatch:
        """What the graph reads. The longest length on the host bounds the real ones: kernels take those from the device."""
        lengths = (1,) * bucket.sequences if bucket.decoding else (bucket.tokens,) + (1,) * (bucket.sequences - 1)
        return ForwardBatch(
            **inputs.on_device(self._page_table[: bucket.sequences], lengths, self._longest),
            vision_rows=None if bucket.decoding else self._vision_rows,
        )


class _Inputs:
    """The integers that a bucket's graph reads, side by side in one buffer, so that one copy brings them all."""

    def __init__(self, bucket: Bucket, device: torch.device, kv_heads: int) -> None:
        self._bucket = bucket
        tokens, sequences = bucket.tokens, bucket.sequences
        self._fields: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "token_ids": (torch.int64, (tokens,)),
            "slots": (torch.int64, (tokens,)),
            "row_index": (torch.int64, (tokens,)),
            f"{_WANTED}index": (torch.int64, (sequences,)),
            f"{_WANTED}sequence": (torch.int64, (sequences,)),
            "positions": (torch.int32, (3, tokens)),
            "query_starts": (torch.int32, (sequences + 1,)),
            "context_lengths": (torch.int32, (sequences,)),
            f"{_WANTED}context_lengths": (torch.int32, (sequences,)),
        }
        self._items = sequences + -(-_KEY_PROGRAMS // kv_heads)
        if bucket.uneven:
            lists = {"sequence": self._items, "part": self._items, "first": sequences + 1, "size": 1}
            self._fields |= {f"{_LIST}{name}": (torch.int32, (count,)) for name, count in lists.items()}
        self._bytes = sum(_aligned(_size(dtype, shape)) for dtype, shape in self._fields.values())
        self._buffer = torch.zeros(self._bytes, dtype=torch.uint8, device=device)
        self._one_each = torch.arange(sequences + 1, dtype=torch.int32, device=device)

    def on_device(self, page_table: torch.Tensor, lengths: tuple[int, ...], longest: int) -> dict[str, Any]:
        """Fields of a ForwardBatch. New tokens of each sequence and the longest context bound what will be in the buffer."""
        views: dict[str, Any] = dict(self._views(self._buffer))
        if self._bucket.decoding:
            views["row_index"] = None
        contexts = (longest,) * self._bucket.sequences
        starts, on_device = views.pop("query_starts"), views.pop("context_lengths")
        views["sequences"] = PagedSequences(page_table, starts, on_device, lengths, contexts)
        # How many places will be used nobody knows, mostly few: keys are split as if it were one.
        of_wanted = (longest,) + (0,) * (self._bucket.sequences - 1)
        wanted = _taken_out(views, _WANTED)
        views["wanted"] = WantedTokens(**wanted, query_starts=self._one_each, context_lengths_host=of_wanted)
        if self._bucket.uneven:
            views["key_items"] = KeyItems(**_taken_out(views, _LIST))
        return views

    def _views(self, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        start = 0
        for name, (dtype, shape) in self._fields.items():
            size = _size(dtype, shape)
            yield name, buffer[start : start + size].view(dtype).view(shape)
            start += _aligned(size)

    def fill(self, batch: PackedBatch) -> None:
        staging = torch.empty(self._bytes, dtype=torch.uint8, pin_memory=self._buffer.is_cuda)
        host: dict[str, NDArray[Any]] = {name: view.numpy() for name, view in self._views(staging)}
        count, sequences = len(batch.token_ids), len(batch.query_lengths_host)
        for name, beyond in (("token_ids", 0), ("slots", 0), ("row_index", -1)):
            host[name][:count], host[name][count:] = getattr(batch, name), beyond
        host["positions"][:, :count], host["positions"][:, count:] = batch.positions, 0
        host["context_lengths"][:sequences], host["context_lengths"][sequences:] = batch.context_lengths, 0
        wanted = len(batch.sampling)
        for name, values in (
            ("index", batch.wanted_index),
            ("sequence", batch.sampling),
            ("context_lengths", batch.context_lengths[batch.sampling]),
        ):
            place = host[f"{_WANTED}{name}"]
            place[:wanted], place[wanted:] = values, 0
        host["query_starts"][: sequences + 1] = batch.query_starts
        # When decoding, every place is a sequence of one query; else those beyond have none.
        beyond = self._bucket.sequences - sequences
        host["query_starts"][sequences + 1 :] = count + (np.arange(1, beyond + 1) if self._bucket.decoding else 0)
        if self._bucket.uneven:
            contexts = batch.context_lengths_host + (0,) * (self._bucket.sequences - sequences)
            for name, values in share_keys(contexts, self._items, _KEYS_OF_A_PART).items():
                host[f"{_LIST}{name}"][:] = values
        self._buffer.copy_(staging, non_blocking=True)


def _taken_out(views: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): views.pop(name) for name in list(views) if name.startswith(prefix)}


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * int(np.prod(shape))


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


def step_graphs_are_possible(model: VisionLanguageModel, page_size: int) -> bool:
    """Whether attention runs where all that varies is on the device, for decoding and for prompts."""
    weight, spec = model.text.embed_tokens.weight, model.spec.text
    if weight.device.type != "cuda":
        return False
    found = []
    page = weight.new_empty(1, page_size, spec.num_kv_heads, spec.head_dim)
    for queries in ((1, 1), (3, 1)):
        starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32, device=weight.device)
        q = weight.new_empty(sum(queries), spec.num_heads, spec.head_dim)
        table, lengths = starts.new_zeros(2, 1), starts.new_ones(2)
        arguments = (q, page, page, PagedSequences(table, starts, lengths, queries, (4, 4)))
        found.append(next((twin for twin in paged_attention.twins if twin.when(*arguments)), None))
    return all(twin is not None and twin.recordable for twin in found)
