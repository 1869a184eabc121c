"""The tower: every tile by itself, all of the same size, so that a batch is one tensor."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from sightline.models.layers import GeluMLP, LayerNorm
from sightline.models.linear import Linear
from sightline.models.tower import Tower
from sightline.ops.activations import gelu
from sightline.types import Grid

from .config import TileTowerSpec

EPS = 1e-5


class TileBlock(nn.Module):
    def __init__(self, spec: TileTowerSpec) -> None:
        super().__init__()
        self.heads, size = spec.num_heads, spec.hidden_size
        self.norm1, self.norm2 = LayerNorm(size, EPS), LayerNorm(size, EPS)
        self.qkv = Linear(size, 3 * size, True, "column")
        self.proj = Linear(size, size, True, "row")
        self.mlp = GeluMLP(size, spec.intermediate_size, True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tiles, patches, size]"""
        q, k, v = self.qkv(self.norm1(hidden)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        hidden = hidden + self.proj(attended)
        out: torch.Tensor = hidden + self.mlp(self.norm2(hidden))
        return out


class TileTower(Tower):
    def __init__(self, spec: TileTowerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embed = Linear(spec.patch_width, spec.hidden_size, True)
        self.positions = nn.Parameter(torch.empty(spec.side**2, spec.hidden_size))  # row by row
        self.blocks = nn.ModuleList(TileBlock(spec) for _ in range(spec.depth))
        self.norm = LayerNorm(spec.joined_size, EPS)
        self.fc1 = Linear(spec.joined_size, spec.joined_size, True)
        self.fc2 = Linear(spec.joined_size, spec.out_hidden_size, True)
        self.newline = nn.Parameter(torch.empty(spec.out_hidden_size))
        self.separator = nn.Parameter(torch.empty(spec.out_hidden_size))
        self.ordered: torch.Tensor  # positions in the order in which patches come

    @property
    def embedding_width(self) -> int:
        return self.spec.embedding_width

    @property
    def patch_width(self) -> int:
        return self.spec.patch_width

    @property
    def learned_embeddings(self) -> torch.Tensor:
        return torch.stack((self.newline, self.separator))

    def num_rows(self, grid: Grid) -> int:
        return math.prod(grid) // self.spec.merge_size**2

    def largest_grids(self, patches: int) -> list[Grid]:
        side = self.spec.side
        return [(-(-patches // side**2), side, side)]

    def prepare(self) -> None:
        merge = self.spec.merge_size
        grid = self.positions.detach().unflatten(0, (self.spec.side // merge, merge, self.spec.side // merge, merge))
        self.ordered = grid.transpose(1, 2).flatten(0, 3)

    def make_batch(self, patches: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        side = self.spec.side
        assert all(grid[1:] == (side, side) for grid in grids), grids
        return torch.cat(tuple(patches)).unflatten(0, (-1, side**2))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.patch_embed(batch) + self.ordered
        for block in self.blocks:
            hidden = block(hidden)
        out: torch.Tensor = self.fc2(gelu(self.fc1(self.norm(hidden.reshape(-1, self.spec.joined_size)))))
        return out
