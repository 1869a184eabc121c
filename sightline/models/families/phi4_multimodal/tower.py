"""The tower: SigLIP on crops, each by itself, with learned positions; then 2x2 averages and a projector.

Of a padded crop only the patches come that reach into the picture. A padded one is white, has position 0, sees the others and
is seen by none: all padded patches of a crop are the same throughout, and are never read but in averages of 2x2 patches at the
edge of an odd number of them. So one of them, behind all others, stands for those of its crop.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sightline.models.families.phi4_multimodal.config import CropTowerSpec
from sightline.models.layers import GeluMLP, LayerNorm
from sightline.models.linear import Linear
from sightline.models.tower import Tower
from sightline.ops.activations import gelu
from sightline.ops.attention import query_attention, segment_attention
from sightline.ops.transfer import send
from sightline.spec import ModelSpec
from sightline.types import Grid

WHITE = 1.0  # a white pixel, normalised


@dataclass(frozen=True)
class CropBatch:
    """Crops of several views, one after another, patches row by row."""

    patches: torch.Tensor  # [patches, width]
    positions: torch.Tensor  # [patches] int64: row of the table of positions
    grids: tuple[Grid, ...]
    segment_starts: torch.Tensor  # [crops + 1] int32: attention stays inside a crop
    segment_lengths: tuple[int, ...]  # the same on the host

    @property
    def padded(self) -> int:
        """Crops that a padded patch stands for."""
        return sum(grid[0] for grid in self.grids if is_odd(grid))

    def parts(self, hidden: torch.Tensor) -> Iterator[tuple[Grid, torch.Tensor, torch.Tensor]]:
        """Of [patches + padded, …]: for each grid its patches [crops, patches of one, …] and what stands for padded ones
        [crops, …], none where the grid is even."""
        sizes = [math.prod(grid) for grid in self.grids]
        counts = [grid[0] if is_odd(grid) else 0 for grid in self.grids]
        own = hidden.split([*sizes, *counts])
        for grid, patches, white in zip(self.grids, own, own[len(sizes) :], strict=False):
            yield grid, patches.unflatten(0, (grid[0], -1)), white


def is_odd(grid: Grid) -> bool:
    return bool(grid[1] % 2 or grid[2] % 2)


@functools.lru_cache(maxsize=4096)
def crop_positions(rows: int, columns: int, side: int) -> NDArray[np.int64]:
    """[rows * columns] places in a table of side x side: those of a crop that is padded are spread over all of it."""
    down, across = (np.arange(count) * side // count for count in (rows, columns))
    return (down[:, None] * side + across).flatten()


class CropBlock(nn.Module):
    def __init__(self, spec: CropTowerSpec) -> None:
        super().__init__()
        self.heads, size = spec.num_heads, spec.hidden_size
        self.scale = (size // spec.num_heads) ** -0.5
        self.norm1, self.norm2 = LayerNorm(size, spec.norm_eps), LayerNorm(size, spec.norm_eps)
        self.qkv = Linear(size, 3 * size, True, "column")
        self.proj = Linear(size, size, True, "row")
        self.mlp = GeluMLP(size, spec.intermediate_size, True)

    def forward(self, hidden: torch.Tensor, batch: CropBatch) -> torch.Tensor:
        """[patches + padded, size], in the memory of `hidden`."""
        qkv = self.qkv(self.norm1(hidden)).unflatten(1, (3, self.heads, -1))
        count = len(batch.patches)
        q, k, v = qkv[:count].unbind(1)
        attended = segment_attention(q, k, v, batch.segment_starts, batch.segment_lengths, self.scale)
        if batch.padded:
            attended = torch.cat((attended, self._attend_padded(qkv, batch)))
        hidden = self.proj.add_to(hidden, attended.flatten(1))
        return self.mlp.add_to(hidden, self.norm2(hidden))

    def _attend_padded(self, qkv: torch.Tensor, batch: CropBatch) -> torch.Tensor:
        """[padded, heads, head_dim]: over the patches of their crops."""
        found = []
        for _, patches, white in batch.parts(qkv):
            if len(white):
                found.append(query_attention(white[:, 0], patches[:, :, 1], patches[:, :, 2], self.scale))
        return torch.cat(found)


class CropTower(Tower):
    def __init__(self, spec: CropTowerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embed = Linear(spec.patch_width, spec.hidden_size, True)
        self.positions = nn.Parameter(torch.empty(spec.side**2, spec.hidden_size))
        self.blocks = nn.ModuleList(CropBlock(spec) for _ in range(spec.depth))
        self.newline = nn.Parameter(torch.empty(spec.hidden_size))
        self.separator = nn.Parameter(torch.empty(spec.hidden_size))
        self.fc1 = Linear(spec.hidden_size, spec.out_hidden_size, True)
        self.fc2 = Linear(spec.out_hidden_size, spec.out_hidden_size, True)
        self._white: torch.Tensor  # [1, hidden_size]: a padded patch, embedded
        self._learned: torch.Tensor  # [2, out_hidden_size]: newline and separator, projected as rows are

    @property
    def embedding_width(self) -> int:
        return self.spec.embedding_width

    @property
    def patch_width(self) -> int:
        return self.spec.patch_width

    @property
    def learned_embeddings(self) -> torch.Tensor:
        return self._learned

    def num_rows(self, grid: Grid) -> int:
        return grid[0] * -(-grid[1] // 2) * -(-grid[2] // 2)

    def largest_grids(self, patches: int) -> list[Grid]:
        side = self.spec.side
        return [(-(-patches // side**2), side, side)]

    @torch.inference_mode()
    def prepare(self) -> None:
        white = self.positions.new_full((1, self.spec.patch_width), WHITE)
        self._white = self.patch_embed(white) + self.positions[:1]
        self._learned = self._project(torch.stack((self.newline, self.separator)))

    def make_batch(self, patches: Sequence[torch.Tensor], grids: Sequence[Grid]) -> CropBatch:
        device, side = self.positions.device, self.spec.side
        assert all(0 < max(grid[1:]) <= side for grid in grids), grids
        positions = [np.tile(crop_positions(rows, columns, side), crops) for crops, rows, columns in grids]
        lengths = [rows * columns for crops, rows, columns in grids for _ in range(crops)]
        starts = np.array([0, *itertools.accumulate(lengths)], np.int32)
        return CropBatch(
            patches=torch.cat(tuple(patches)),
            positions=send(np.concatenate(positions), device),
            grids=tuple(grids),
            segment_starts=send(starts, device),
            segment_lengths=tuple(lengths),
        )

    def forward(self, batch: CropBatch) -> torch.Tensor:
        hidden = self.patch_embed(batch.patches) + self.positions[batch.positions]
        if batch.padded:
            hidden = torch.cat((hidden, self._white.expand(batch.padded, -1)))
        for block in self.blocks:
            hidden = block(hidden, batch)
        pooled = [_pooled(patches.unflatten(1, grid[1:]), white) for grid, patches, white in batch.parts(hidden)]
        return self._project(torch.cat(pooled))

    def _project(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(gelu(self.fc1(rows)))
        return out


def _pooled(patches: torch.Tensor, white: torch.Tensor) -> torch.Tensor:
    """[crops, rows, columns, size] to averages of 2 x 2, [rows of all crops, size]. white [crops, size]: beyond an odd edge."""
    crops, rows, columns, size = patches.shape
    if columns % 2:
        patches = torch.cat((patches, white[:, None, None].expand(crops, rows, 1, size)), 2)
    if rows % 2:
        patches = torch.cat((patches, white[:, None, None].expand(crops, 1, patches.shape[2], size)), 1)
    pooled: torch.Tensor = patches.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).mean((2, 4))
    return pooled.flatten(0, 2)


def make_tower(spec: ModelSpec) -> CropTower:
    assert isinstance(spec.vision, CropTowerSpec)
    return CropTower(spec.vision)
