"""What the models take: batches whose every field is ready on the device. Built in vision/ and run/, read in models/."""

from dataclasses import dataclass

import torch

from sightline.ops.key_items import KeyItems
from sightline.ops.sequences import PagedSequences


@dataclass(frozen=True)
class WindowLayout:
    """Window attention: merged tokens are put in window order before the first block and back after the merger."""

    order: torch.Tensor  # [rows] int64: which merged token stands at each place
    inverse: torch.Tensor  # [rows] int64
    starts: torch.Tensor  # [windows + 1] int32, in patches
    lengths: tuple[int, ...]  # the same on the host


@dataclass(frozen=True)
class TowerBatch:
    """Patches of several images and videos, one after another, each in merge order.

    A tensor of `patches` is either compact (a still; channels * patch² wide) or full (a video; temporal times wider).
    """

    patches: tuple[torch.Tensor, ...]  # each [patches_i, width]
    row_col: torch.Tensor  # [patches, 2] int32: place in the image's grid
    grid_size: torch.Tensor  # [patches, 2] int32: that grid's (height, width)
    segment_starts: torch.Tensor  # [frames + 1] int32: attention stays inside a frame
    segment_lengths: tuple[int, ...]  # the same on the host
    windows: WindowLayout | None  # row_col is in window order when set


@dataclass(frozen=True)
class WantedTokens:
    """New tokens whose logits are wanted. In the last layer they alone attend, each like the only new token of a sequence."""

    index: torch.Tensor  # [wanted] int64: which of the batch's tokens
    sequence: torch.Tensor  # [wanted] int64: of which of its sequences
    query_starts: torch.Tensor  # [wanted + 1] int32: 0, 1, 2, …
    context_lengths: torch.Tensor  # [wanted] int32: tokens that it sees, itself included
    context_lengths_host: tuple[int, ...]  # where a graph is recorded the longest is a bound, and the others say nothing


@dataclass(frozen=True)
class ForwardBatch:
    """New tokens of several sequences, one sequence after another, and where their keys and values live."""

    token_ids: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [3, tokens] int32: time, height, width
    slots: torch.Tensor  # [tokens] int64: where each token's key and value go
    sequences: PagedSequences
    vision_rows: torch.Tensor | None  # [rows, row_width]: the merged row, then one per deepstack tap
    row_index: torch.Tensor | None  # [tokens] int64: row of vision_rows, -1 for text
    wanted: WantedTokens
    key_items: KeyItems | None = None  # where contexts are of very different lengths


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one decoder layer. [pages, page_size, kv_heads, head_dim] each."""

    keys: torch.Tensor
    values: torch.Tensor
