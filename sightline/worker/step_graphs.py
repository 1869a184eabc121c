"""Steps of the language model as CUDA graphs: decoding, and small chunks of prompts, whose launches outlast their work.

A graph is captured for a bucket of sizes, and all that varies lies in buffers that are rewritten before each replay:

    decoding     one token each of up to 1, 2, 4, 8 … sequences, of about equal length or not
    mixed        up to 16, 32, … 2,304 tokens of up to 8 or 64 sequences, image rows among them

Longer steps keep the device busy for longer than the host takes to launch them one by one.

What a bucket has beyond the batch computes something that nobody reads: its tokens belong to no sequence (or to one without
context), and their keys and values go to the scratch page. All graphs share one pool of memory; each has its place for logits,
which its next replay overwrites: they are read before, because everything runs in the order of one stream.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.config import EngineConfig
from sightline.models.adapters import AdapterGates
from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices
from sightline.models.model import VisionLanguageModel
from sightline.ops.capture import Capture, Replay
from sightline.ops.dispatch import kernels_are_on
from sightline.ops.pages import is_worth_gathering
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.ops.split_kv import SplitKV, make_split_kv
from sightline.ops.transfer import send
from sightline.worker.batch import known_tokens
from sightline.worker.caches import first_paged
from sightline.worker.step_input import PackedBatch
from sightline.worker.workspaces import chosen_attention

DECODING = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)  # sequences
UNEVEN = (8, 16, 32, 64, 128, 256)  # sequences, one of them much longer than the others: a list shares out their keys
_LONG = 8192  # tokens; a shorter context holds nobody up
_MUCH_LONGER = 4  # than the average
_SMALL_TOKENS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
MIXED_TOKENS = (*_SMALL_TOKENS, *range(1152, 2305, 128))
MIXED_SEQUENCES = (8, 64)
_KEY_PROGRAMS = 1024  # that keys of uneven sequences are shared out to, at least
_KEYS_OF_A_PART = 128  # or a multiple of it
_LIST, _LOGITS, _STATES, _ADAPTERS = "split_kv.", "logits_indices.", "states.", "adapter_index"


@dataclass(frozen=True)
class StepBucket:
    tokens: int
    sequences: int
    decoding: bool  # one token of each sequence, no image rows
    uneven: bool = False  # for contexts of very different lengths


def buckets(max_sequences: int, max_tokens: int) -> list[StepBucket]:
    """All that an engine with these limits can meet, the largest first."""
    decoding = _up_to(DECODING, min(max_sequences, max_tokens))
    found = [StepBucket(count, count, True) for count in decoding]
    if decoding[-1] >= UNEVEN[0]:
        found += [StepBucket(count, count, True, uneven=True) for count in _up_to(UNEVEN, decoding[-1])]
    counts = _up_to(MIXED_SEQUENCES, max_sequences)
    for tokens in _up_to(MIXED_TOKENS, max_tokens):
        # In large steps places of sequences that are not there cost nothing to speak of.
        fitting = counts[-1:] if tokens > _SMALL_TOKENS[-1] else [count for count in counts if count <= tokens]
        found += [StepBucket(tokens, sequences, False) for sequences in fitting]
    return sorted(found, key=lambda bucket: (bucket.tokens, bucket.sequences, bucket.uneven), reverse=True)


def _is_uneven(contexts: tuple[int, ...]) -> bool:
    longest = max(contexts)
    return longest >= _LONG and longest * len(contexts) >= _MUCH_LONGER * sum(contexts)


def _up_to(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The sizes that are needed for anything up to `most`, as far as they go."""
    enough = next((position for position, size in enumerate(sizes) if size >= most), len(sizes) - 1)
    return sizes[: enough + 1]


class StepGraphs:
    def __init__(
        self,
        model: VisionLanguageModel,
        caches: list[LayerCache],
        vision_embeddings: torch.Tensor,
        sampled: torch.Tensor,
        capture: Capture,
        max_sequences: int,
        max_tokens: int,
        max_model_len: int,
    ) -> None:
        self._model, self._caches, self._vision_embeddings, self._capture = model, caches, vision_embeddings, capture
        self._device, self._longest = vision_embeddings.device, max_model_len
        self._buckets = buckets(max_sequences, max_tokens)
        most = max(bucket.sequences for bucket in self._buckets)
        paged = first_paged(caches)
        assert paged is not None, "steps without attention have no graphs"
        page_size, self._kv_heads, self._head_dim = paged.keys.shape[1:]
        pages = -(-max_model_len // page_size)
        # Where what a bucket has beyond the batch keeps its states; None: no layer keeps any.
        self._scratch_state = max_sequences if model.spec.text.state_bytes(1) else None
        self._page_table = torch.zeros(most, pages, dtype=torch.int32, device=self._device)
        self.sampled = sampled  # [slots] int64: the token that each slot sampled last
        self._graphs: dict[StepBucket, tuple[_Inputs, Replay, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    @torch.inference_mode()
    def capture_all(self, advance: Callable[[], None]) -> None:
        for bucket in self._buckets:  # the largest first, so that the others find room in its memory
            self._captured(bucket)
            advance()

    def bucket_of(self, batch: PackedBatch) -> StepBucket | None:
        tokens, sequences = len(batch.token_ids), len(batch.query_lengths_host)
        decoding = tokens == sequences and not batch.has_rows
        if tokens > _SMALL_TOKENS[-1] and self._gathers(batch):
            return None
        indices = max(sequences, len(batch.logits_index))  # a bucket has as many of logits as of sequences
        fitting = [b for b in self._buckets if b.tokens >= tokens and b.sequences >= indices and b.decoding == decoding]
        uneven = decoding and sequences > UNEVEN[0] // 2 and _is_uneven(batch.context_lengths_host)
        fitting = [bucket for bucket in fitting if bucket.uneven == uneven] or fitting
        return fitting[-1] if fitting else None

    def _gathers(self, batch: PackedBatch) -> bool:
        """Whether attention gathers keys first, which no graph does; the device is then busy for long enough."""
        return is_worth_gathering(self._head_dim, batch.query_lengths_host, batch.context_lengths_host)

    @torch.inference_mode()
    def run(self, batch: PackedBatch) -> torch.Tensor | None:
        """Logits [logits, vocab] of the batch, until the next run; None where no bucket fits, or definitions are to run."""
        bucket = self.bucket_of(batch) if kernels_are_on() else None
        if bucket is None:
            return None
        inputs, replay, logits = self._captured(bucket)
        inputs.fill(batch)
        rows, pages = batch.page_table.shape
        self._page_table[:rows, :pages].copy_(send(batch.page_table, self._device))
        replay()
        return logits[: len(batch.logits_index)]

    def _captured(self, bucket: StepBucket) -> "tuple[_Inputs, Replay, torch.Tensor]":
        if bucket not in self._graphs:
            adapters = self._model.text.adapter_gates
            inputs = _Inputs(bucket, self._device, self._kv_heads, self._scratch_state, adapters)
            static = self._static_batch(bucket, inputs)

            def compute(caches: Sequence[LayerCache]) -> torch.Tensor:
                batch = replace(static, token_ids=known_tokens(static.token_ids, self.sampled), adapter_gates=inputs.gates())
                logits: torch.Tensor = self._model(batch, caches)
                return logits

            def compile_kernels() -> None:
                layers = self._model.varied_layers
                with self._model.text.only(layers):
                    compute([self._caches[index] for index in layers])

            self._graphs[bucket] = (inputs, *self._capture(lambda: compute(self._caches), compile_kernels))
        return self._graphs[bucket]

    def _static_batch(self, bucket: StepBucket, inputs: "_Inputs") -> ForwardBatch:
        """What the graph reads. The longest length on the host bounds the real ones: kernels take those from the device."""
        lengths = (1,) * bucket.sequences if bucket.decoding else (bucket.tokens,) + (1,) * (bucket.sequences - 1)
        return ForwardBatch(
            **inputs.on_device(self._page_table[: bucket.sequences], lengths, self._longest),
            vision_embeddings=None if bucket.decoding else self._vision_embeddings,
        )


class _Inputs:
    """The integers that a bucket's graph reads, side by side in one buffer, so that one copy brings them all."""

    def __init__(
        self,
        bucket: StepBucket,
        device: torch.device,
        kv_heads: int,
        scratch_state: int | None,
        adapters: AdapterGates | None = None,
    ) -> None:
        self._bucket, self._scratch_state, self._adapters = bucket, scratch_state, adapters
        tokens, sequences = bucket.tokens, bucket.sequences
        self._fields: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "token_ids": (torch.int64, (tokens,)),
            "slots": (torch.int64, (tokens,)),
            "embedding_index": (torch.int64, (tokens,)),
            f"{_LOGITS}index": (torch.int64, (sequences,)),
            f"{_LOGITS}sequence": (torch.int64, (sequences,)),
            "positions": (torch.int32, (3, tokens)),
            "query_starts": (torch.int32, (sequences + 1,)),
            "context_lengths": (torch.int32, (sequences,)),
            f"{_LOGITS}context_lengths": (torch.int32, (sequences,)),
        }
        if scratch_state is not None:
            self._fields |= {f"{_STATES}slots": (torch.int64, (sequences,)), f"{_STATES}fresh": (torch.bool, (sequences,))}
        if adapters is not None:
            self._fields[_ADAPTERS] = (torch.int64, (tokens,))
        self._items = sequences + -(-_KEY_PROGRAMS // kv_heads)
        if bucket.uneven:
            lists = {"sequence": self._items, "part": self._items, "first": sequences + 1, "size": 1}
            self._fields |= {f"{_LIST}{name}": (torch.int32, (count,)) for name, count in lists.items()}
        self._bytes = sum(_aligned(_size(dtype, shape)) for dtype, shape in self._fields.values())
        self._buffer = torch.zeros(self._bytes, dtype=torch.uint8, device=device)
        if scratch_state is not None:  # what runs before the first batch, to compile kernels, changes nobody's state
            empty = dict(self._views(self._buffer))
            empty[f"{_STATES}slots"].fill_(scratch_state)
            empty[f"{_STATES}fresh"].fill_(True)
        self._one_each = torch.arange(sequences + 1, dtype=torch.int32, device=device)

    def on_device(self, page_table: torch.Tensor, lengths: tuple[int, ...], longest: int) -> dict[str, Any]:
        """Fields of a ForwardBatch. New tokens of each sequence and the longest context bound what will be in the buffer."""
        views: dict[str, Any] = dict(self._views(self._buffer))
        views.pop(_ADAPTERS, None)
        if self._bucket.decoding:
            views["embedding_index"] = None
        contexts = (longest,) * self._bucket.sequences
        starts, on_device = views.pop("query_starts"), views.pop("context_lengths")
        views["sequences"] = PagedSequences(page_table, starts, on_device, lengths, contexts)
        # How many places will be used nobody knows, mostly few: keys are split as if it were one.
        of_logits = (longest,) + (0,) * (self._bucket.sequences - 1)
        logits_indices = _taken_out(views, _LOGITS)
        views["logits_indices"] = LogitsIndices(**logits_indices, query_starts=self._one_each, context_lengths_host=of_logits)
        if self._bucket.uneven:
            views["split_kv"] = SplitKV(**_taken_out(views, _LIST))
        if self._scratch_state is not None:
            views["states"] = StateIndices(**_taken_out(views, _STATES))
        return views

    def gates(self) -> torch.Tensor | None:
        """Of the adapters in the buffer; computed in the graph, once for all layers."""
        return None if self._adapters is None else self._adapters.of(dict(self._views(self._buffer))[_ADAPTERS])

    def _views(self, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        start = 0
        for name, (dtype, shape) in self._fields.items():
            size = _size(dtype, shape)
            yield name, buffer[start : start + size].view(dtype).view(shape)
            start += _aligned(size)

    def fill(self, batch: PackedBatch) -> None:
        staging = torch.empty(self._bytes, dtype=torch.uint8, pin_memory=self._buffer.is_cuda)
        host: dict[str, NDArray[Any]] = {name: view.numpy() for name, view in self._views(staging)}
        tokens, sequences = len(batch.token_ids), len(batch.query_lengths_host)
        for name, beyond in (("token_ids", 0), ("slots", 0), ("embedding_index", -1)):
            host[name][:tokens], host[name][tokens:] = getattr(batch, name), beyond
        if self._adapters is not None:
            host[_ADAPTERS][:tokens] = -1 if batch.adapter_index is None else batch.adapter_index
            host[_ADAPTERS][tokens:] = -1
        host["positions"][:, :tokens], host["positions"][:, tokens:] = batch.positions, 0
        host["context_lengths"][:sequences], host["context_lengths"][sequences:] = batch.context_lengths, 0
        count = len(batch.logits_index)
        for name, values in (
            ("index", batch.logits_index),
            ("sequence", batch.logits_sequence),
            ("context_lengths", batch.logits_context),
        ):
            buffer = host[f"{_LOGITS}{name}"]
            buffer[:count], buffer[count:] = values, 0
        host["query_starts"][: sequences + 1] = batch.query_starts
        # When decoding, every place is a sequence of one query; else those beyond have none.
        beyond = self._bucket.sequences - sequences
        host["query_starts"][sequences + 1 :] = tokens + (np.arange(1, beyond + 1) if self._bucket.decoding else 0)
        if self._scratch_state is not None:
            slots, fresh = host[f"{_STATES}slots"], host[f"{_STATES}fresh"]
            slots[:sequences], slots[sequences:] = batch.state_slots, self._scratch_state
            fresh[:sequences], fresh[sequences:] = batch.fresh, True
        if self._bucket.uneven:
            contexts = batch.context_lengths_host + (0,) * (self._bucket.sequences - sequences)
            for name, values in make_split_kv(contexts, self._items, _KEYS_OF_A_PART).items():
                host[f"{_LIST}{name}"][:] = values
        self._buffer.copy_(staging, non_blocking=True)


def _taken_out(views: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): views.pop(name) for name in list(views) if name.startswith(prefix)}


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * int(np.prod(shape))


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


def step_graphs_are_possible(model: VisionLanguageModel, config: EngineConfig) -> bool:
    """Whether layers run where all that varies is on the device, for decoding and for prompts."""
    safe = all(layer.mixer.graph_safe and layer.mlp.graph_safe for layer in model.text.layers)
    if model.text.embed_tokens.weight.device.type != "cuda" or not safe:
        return False
    return all(chosen_attention(model, config, queries).graph_safe for queries in ((1, 1), (3, 1)))
