"""What the decoder takes: batches whose every field is ready on the device. Built in worker/, read in models/."""

from dataclasses import dataclass

import torch

from sightline.ops.latent_cache import LatentCache
from sightline.ops.paged_cache import PagedCache
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.ops.split_kv import SplitKV


@dataclass(frozen=True)
class LogitsIndices:
    """New tokens whose logits are wanted. In the last layer they alone attend, each like the only new token of a sequence."""

    index: torch.Tensor  # [logits] int64: which of the batch's tokens
    sequence: torch.Tensor  # [logits] int64: of which of its sequences
    query_starts: torch.Tensor  # [logits + 1] int32: 0, 1, 2, …
    context_lengths: torch.Tensor  # [logits] int32: tokens that it sees, itself included
    context_lengths_host: tuple[int, ...]  # where a graph is captured the longest is a bound, and the others say nothing


def single_queries(logits_indices: LogitsIndices, page_table: torch.Tensor) -> PagedSequences:
    """Those tokens, each as the only new one of a sequence."""
    return PagedSequences(
        page_table[logits_indices.sequence],
        logits_indices.query_starts,
        logits_indices.context_lengths,
        (1,) * len(logits_indices.index),
        logits_indices.context_lengths_host,
    )


@dataclass(frozen=True)
class ForwardBatch:
    """New tokens of several sequences, one sequence after another, and where what is kept of them lives."""

    token_ids: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [3, tokens] int32: time, height, width
    slots: torch.Tensor  # [tokens] int64: where each token's key and value go
    sequences: PagedSequences
    vision_embeddings: torch.Tensor | None  # [rows, embedding_width]: the merged row, then one per deepstack feature
    embedding_index: torch.Tensor | None  # [tokens] int64: row of vision_embeddings, -1 for text
    logits_indices: LogitsIndices
    split_kv: SplitKV | None = None  # where contexts are of very different lengths
    states: StateIndices | None = None  # where a layer keeps states
    adapter_gates: torch.Tensor | None = None  # [tokens, ranks], where some tokens use an adapter: models/adapters.py


@dataclass(frozen=True)
class StateCache:
    """States of one decoder layer, [slots, …] each, as its StateCacheSpec lists them."""

    tensors: tuple[torch.Tensor, ...]


LayerCache = PagedCache | LatentCache | StateCache
