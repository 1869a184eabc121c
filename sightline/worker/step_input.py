"""What crosses between the host, which decides, and a worker, which computes: arrays and plain values, nothing else.

```
host                                      worker
StepInput  (batch, how to sample)   ──►   forward, sample
GrammarMasks (if the step waits)    ──►
                                    ◄──   StepOutput (tokens, log-probabilities, times, or a failure)
EncodeInput (pixels, where to)      ──►   patches, tower, arena
                                    ◄──   EncodeOutput (ready, failed)
```

A running sequence has a *slot*, a number below max_num_seqs. What a worker keeps between steps (the token sampled last, counts
for penalties) is found by slot, so a worker knows no request. All of these can be written to a socket as they are
(sightline/wire.py). No torch here.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.errors import HostMemoryError, MediaError, MissingMediaError, OutOfMemoryError, RankLost, WorkerError
from sightline.sampling_params import ResolvedSampling
from sightline.types import MediaItem


@dataclass(frozen=True)
class WorkerFailure:
    """An exception as data."""

    # undecodable: the GPU cannot decode it, the CPU may; unsaved: host memory does not have what was to be restored
    kind: Literal["media", "missing_media", "undecodable", "unsaved", "out_of_memory", "host_memory", "rank_lost", "internal"]
    message: str

    @classmethod
    def of(cls, error: Exception) -> "WorkerFailure":
        if isinstance(error, MissingMediaError):
            return cls("missing_media", str(error))
        if isinstance(error, HostMemoryError):
            return cls("host_memory", str(error))
        if isinstance(error, MediaError):
            return cls("media", str(error))
        if isinstance(error, OutOfMemoryError):
            return cls("out_of_memory", str(error))
        if isinstance(error, RankLost):
            return cls("rank_lost", str(error))
        return cls("internal", f"{type(error).__name__}: {error}")

    def error(self) -> Exception:
        return _ERRORS.get(self.kind, WorkerError)(self.message)


_ERRORS: dict[str, type[Exception]] = {
    "media": MediaError,
    "missing_media": MissingMediaError,
    "out_of_memory": OutOfMemoryError,
    "host_memory": HostMemoryError,
}


# ---- Steps


@dataclass(frozen=True)
class PackedBatch:
    """New tokens of several sequences, one sequence after another, on the host; models/inputs.py has it on the device."""

    token_ids: NDArray[np.int64]  # [tokens]; -1 - slot stands for the token that the slot's sequence sampled last
    positions: NDArray[np.int32]  # [3, tokens]
    slots: NDArray[np.int64]  # [tokens]: where each token's key and value go
    page_table: NDArray[np.int32]  # [sequences, most pages]
    query_starts: NDArray[np.int32]  # [sequences + 1]: where each sequence's new tokens begin
    context_lengths: NDArray[np.int32]  # [sequences]: all its tokens, the new ones included
    query_lengths_host: tuple[int, ...]
    context_lengths_host: tuple[int, ...]
    embedding_index: NDArray[np.int64]  # [tokens]: embedding slot of each vision token, -1 for text
    has_rows: bool  # whether any token is a vision token
    logits_index: NDArray[np.int64]  # [logits]: tokens whose logits are wanted, ascending
    logits_sequence: NDArray[np.int64]  # [logits]: of which sequence
    state_slots: NDArray[np.int64]  # [sequences]: where the state of each is, in layers that keep one
    adapter_index: NDArray[np.int64] | None = None  # [tokens]: adapter of each token, -1 for none; None: no token has one

    @property
    def fresh(self) -> NDArray[np.bool_]:
        """[sequences]: whether nothing of it was computed before."""
        found: NDArray[np.bool_] = np.diff(self.query_starts) == self.context_lengths
        return found

    @property
    def logits_context(self) -> NDArray[np.int32]:
        """[logits]: how many tokens each of them sees, itself included."""
        behind = self.query_starts[1:][self.logits_sequence] - 1 - self.logits_index
        return (self.context_lengths[self.logits_sequence] - behind).astype(np.int32)


@dataclass(frozen=True)
class SamplingRow:
    """How the token after one of the logits indices is chosen."""

    slot: int
    sampling: ResolvedSampling  # without its grammar, which is the host's
    uniform: float = 0.0  # the random number of this position of this answer, in [0, 1)
    banned_ids: tuple[int, ...] = ()  # end tokens while min_tokens is not reached; with a grammar they are in its mask
    # With penalties: tokens of the answer that the slot's counts lack, -1 for the one sampled last, and draft tokens that come
    # before this position, which count for this row alone.
    count_ids: tuple[int, ...] = ()
    draft_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class SlotReset:
    """A sequence with penalties begins to use a slot: its counts start anew."""

    slot: int
    prompt_ids: NDArray[np.int64]  # each id once


@dataclass(frozen=True)
class StepInput:
    number: int
    batch: PackedBatch
    rows: tuple[SamplingRow, ...]  # one for each of the batch's logits indices; none: nothing is sampled
    resets: tuple[SlotReset, ...] = ()
    masked: tuple[int, ...] = ()  # rows whose grammar's mask follows; sampling waits for it
    copy_pages: NDArray[np.int64] | None = None  # pages [n, 2] of keys and values to copy (from, to) before the step
    # Layers that keep a state: slots [n, 2] to copy (from, to) before the step, and after it.
    restore_states: NDArray[np.int64] | None = None
    save_states: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class GrammarMasks:
    """Which tokens the masked rows of the step may take: bit b of word w of a row is token 32 * w + b."""

    number: int  # of the step
    words: NDArray[np.int32]  # [masked rows, ceil(vocab / 32)]


@dataclass(frozen=True)
class StepOutput:
    number: int
    token_ids: NDArray[np.int64] | None = None  # [rows]; None: nothing was sampled, or it failed
    logprobs: NDArray[np.float32] | None = None  # [rows], if any row asks
    top_ids: NDArray[np.int64] | None = None  # [rows, most top_logprobs], best first
    top_logprobs: NDArray[np.float32] | None = None
    seconds: float = 0.0  # that the device worked on it
    tower_seconds: float = 0.0  # that it worked on items encoded just before it, in line with it
    failure: WorkerFailure | None = None


# ---- Encodes


@dataclass(frozen=True)
class OffloadCopy:
    """Embeddings to copy to host memory before their slots are overwritten."""

    key: bytes
    slots: NDArray[np.int64]


@dataclass(frozen=True)
class EncodeItem:
    key: bytes  # of the embeddings
    slots: NDArray[np.int64]  # [item.rows]: where they go
    item: MediaItem  # its ref has bytes only where the worker decodes them itself, or where they are the embeddings
    pixels: NDArray[np.uint8] | None = None  # [frames, height, width, 3] as decoding/pixels.py gives them
    restore: bool = False  # copied back from host memory
    # Of a video with repeated frames: for each temporal patch, which of those in `pixels` it equals; empty: they are all there.
    groups: tuple[int, ...] = ()

    @property
    def distinct(self) -> MediaItem:
        """What there are pixels of."""
        return self.item.cut_to(max(self.groups) + 1) if self.groups else self.item

    @property
    def for_tower(self) -> bool:
        return not (self.restore or self.item.ref.is_embeddings)


@dataclass(frozen=True)
class EncodeInput:
    """Items that go through the tower together. Offloads come first, then restores, then drops, then the tower."""

    number: int
    items: tuple[EncodeItem, ...]
    offloads: tuple[OffloadCopy, ...] = ()
    drops: tuple[bytes, ...] = ()  # keys that host memory need not keep any more
    side_stream: bool = False  # asynchronously, beside the steps; else in line with them, before the next one


@dataclass(frozen=True)
class EncodeOutput:
    """What became of an EncodeInput: in line, once it is launched; on the side stream, once it is done."""

    number: int
    ready: tuple[bytes, ...]  # keys
    failed: dict[bytes, WorkerFailure]
    seconds: dict[str, float]  # decode and preprocess on the host; of the side stream, encode on the device
