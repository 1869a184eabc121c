"""SigLIP over tiles: learned positions, no rotation, and a projector that joins patches to rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from sightline.models.families.deepseek_vl2.spec import SiglipTowerSpec
from sightline.models.layers import GeluMLP, LayerNorm
from sightline.models.linear import Linear
from sightline.models.tower import Tower
from sightline.ops.activations import gelu
from sightline.ops.attention import segment_attention
from sightline.types import Grid

EPS = 1e-6
HEAD_DIM_MULTIPLE = 16  # on a GPU heads are laid out in multiples of this many numbers


@dataclass(frozen=True)
class TileBatch:
    """Whole tiles, one after another."""

    patches: torch.Tensor  # [tiles * side * side, patch_width]
    starts: torch.Tensor  # [tiles + 1] int32: the first patch of each tile
    lengths: tuple[int, ...]  # patches of each tile


class SiglipBlock(nn.Module):
    def __init__(self, spec: SiglipTowerSpec) -> None:
        super().__init__()
        self.heads, self.head_dim, size = spec.num_heads, spec.head_dim, spec.hidden_size
        self.norm1, self.norm2 = LayerNorm(size, EPS), LayerNorm(size, EPS)
        self.qkv = Linear(size, 3 * size, True, "column")
        self.proj = Linear(size, size, True, "row")
        self.mlp = GeluMLP(size, spec.intermediate_size, True)

    def lay_out_heads(self, padded_head_dim: int) -> None:
        """Puts zeros behind each head's numbers: kernels of attention take heads of some sizes only."""
        more = padded_head_dim - self.head_dim
        if not more:
            return
        rows = self.qkv.weight.detach().unflatten(0, (3 * self.heads, -1))
        self.qkv.weight = nn.Parameter(F.pad(rows, (0, 0, 0, more)).flatten(0, 1))
        assert self.qkv.bias is not None
        self.qkv.bias = nn.Parameter(F.pad(self.qkv.bias.detach().unflatten(0, (3 * self.heads, -1)), (0, more)).flatten())
        columns = self.proj.weight.detach().unflatten(1, (self.heads, -1))
        self.proj.weight = nn.Parameter(F.pad(columns, (0, more)).flatten(1))

    def forward(self, hidden: torch.Tensor, batch: TileBatch) -> torch.Tensor:
        """[patches, hidden_size], in the memory of what comes."""
        q, k, v = self.qkv(self.norm1(hidden)).unflatten(1, (3, self.heads, -1)).unbind(1)
        attended = segment_attention(q, k, v, batch.starts, batch.lengths, self.head_dim**-0.5)
        hidden = self.proj.add_to(hidden, attended.flatten(1))
        return self.mlp.add_to(hidden, self.norm2(hidden))


class SiglipTower(Tower):
    def __init__(self, spec: SiglipTowerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embed = Linear(spec.patch_width, spec.hidden_size, True)
        self.positions = nn.Parameter(torch.empty(spec.side**2, spec.hidden_size))  # row by row
        self.blocks = nn.ModuleList(SiglipBlock(spec) for _ in range(spec.depth))
        self.norm = LayerNorm(spec.hidden_size, EPS)
        self.fc1 = Linear(spec.joined_size, spec.projector_size, True)  # patches to be joined stand one after another
        self.fc2 = Linear(spec.projector_size, spec.out_hidden_size, True)
        self.newline = nn.Parameter(torch.empty(spec.out_hidden_size))
        self.separator = nn.Parameter(torch.empty(spec.out_hidden_size))

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
        return grid[0] * self.spec.rows_side**2

    def largest_grids(self, patches: int) -> list[Grid]:
        side = self.spec.side
        return [(-(-patches // side**2), side, side)]

    def prepare(self) -> None:
        if self.positions.device.type == "cuda":
            padded = -(-self.spec.head_dim // HEAD_DIM_MULTIPLE) * HEAD_DIM_MULTIPLE
            for block in self.blocks:
                assert isinstance(block, SiglipBlock)
                block.lay_out_heads(padded)

    def make_batch(self, patches: Sequence[torch.Tensor], grids: Sequence[Grid]) -> TileBatch:
        side, device = self.spec.side, self.positions.device
        assert all(grid[1:] == (side, side) for grid in grids), grids
        tiles = sum(grid[0] for grid in grids)
        starts = torch.arange(0, (tiles + 1) * side**2, side**2, dtype=torch.int32, device=device)
        return TileBatch(torch.cat(tuple(patches)), starts, (side**2,) * tiles)

    def forward(self, batch: TileBatch) -> torch.Tensor:
        hidden = self.patch_embed(batch.patches.to(self.positions.dtype))
        hidden = (hidden.unflatten(0, (-1, self.spec.side**2)) + self.positions).flatten(0, 1)
        for block in self.blocks:
            hidden = block(hidden, batch)
        out: torch.Tensor = self.fc2(gelu(self.fc1(self._joined(self.norm(hidden)))))
        return out

    def _joined(self, hidden: torch.Tensor) -> torch.Tensor:
        """[patches, size] to [rows, joined_size]; behind the last patches of a line, and the last lines, are zeros."""
        spec = self.spec
        more = spec.rows_side * spec.join - spec.side
        grid = F.pad(hidden.unflatten(0, (-1, spec.side, spec.side)), (0, 0, 0, more, 0, more))
        apart = grid.unflatten(2, (spec.rows_side, spec.join)).unflatten(1, (spec.rows_side, spec.join))
        joined: torch.Tensor = apart.transpose(2, 3).reshape(-1, spec.joined_size)
        return joined
