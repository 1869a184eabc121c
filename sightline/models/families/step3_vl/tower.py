"""Step3-VL's tower: the shared one with a norm behind the positions, and a merger that convolves over the grid."""

import torch

from sightline.models.families.step3_vl.config import DOWNSAMPLING, ConvMergerSpec
from sightline.models.layers import make_norm
from sightline.models.linear import Linear
from sightline.models.patch_tower import Merger, PatchTower
from sightline.models.tower_batch import TowerBatch
from sightline.parallel.sequence import SequenceSplit
from sightline.spec import PatchTowerSpec
from sightline.types import Grid


class ConvMerger(Merger):
    """Two convolutions over the grid, each 3 x 3 of stride 2 with zeros around it, and a linear map to rows.

    A convolution is one product over the nine neighbours of every other point. Which they are is worked out on the device from
    each point's place in its grid, so that a graph can be captured; points past the batch make rows that nobody reads.
    """

    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        assert isinstance(spec.merger, ConvMergerSpec)
        size = spec.block.hidden_size
        self.downsample1 = Linear(9 * size, 2 * size, True)  # columns ordered (row, column, channel)
        self.downsample2 = Linear(9 * 2 * size, 4 * size, True)
        self.projector = Linear(4 * size, spec.out_hidden_size, spec.merger.bias)
        self.shift: torch.Tensor | None = None

    def shift_by(self, biases: torch.Tensor) -> None:
        self.shift = biases

    def forward(self, hidden: torch.Tensor, row_col: torch.Tensor, grid_size: torch.Tensor) -> torch.Tensor:
        """hidden [points, hidden_size] of whole grids, in blocks of 4 x 4; row_col, grid_size [points, 2] as in TowerBatch."""
        if self.shift is not None:
            hidden = (hidden + self.shift).to(hidden.dtype)  # before zeros are put around it
        block = DOWNSAMPLING
        for downsample in (self.downsample1, self.downsample2):
            hidden = downsample(neighbours(hidden, row_col, grid_size, block).flatten(1))
            row_col, grid_size, block = every_other(row_col, block) // 2, every_other(grid_size, block) // 2, block // 2
        rows: torch.Tensor = self.projector(hidden)
        return rows


def every_other(points: torch.Tensor, block: int) -> torch.Tensor:
    """Those in even rows and columns of blocks of block x block points, [points / 4, …]."""
    kept: torch.Tensor = points.unflatten(0, (-1, block, block))[:, ::2, ::2].flatten(0, 2)
    return kept


def neighbours(hidden: torch.Tensor, row_col: torch.Tensor, grid_size: torch.Tensor, block: int) -> torch.Tensor:
    """[points / 4, 9, size]: what is around every other point, row by row; zeros outside its grid."""
    centres = every_other(torch.arange(len(hidden), device=hidden.device), block)[:, None]
    (row, column), (height, width) = row_col[centres[:, 0]].split(1, 1), grid_size[centres[:, 0]].split(1, 1)
    steps = torch.arange(9, device=hidden.device)
    rows, columns = row + steps // 3 - 1, column + steps % 3 - 1  # [centres, 9]
    outside = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)
    index = centres + _number(rows, columns, width, block) - _number(row, column, width, block)
    return hidden[index.clamp(0, len(hidden) - 1)].masked_fill(outside[..., None], 0)


def _number(row: torch.Tensor, column: torch.Tensor, width: torch.Tensor, block: int) -> torch.Tensor:
    """Of a point among those of its grid, which lie in blocks of block x block."""
    block_row, block_column = row.div(block, rounding_mode="floor"), column.div(block, rounding_mode="floor")
    return (block_row * (width // block) + block_column) * block**2 + row % block * block + column % block


class StepTower(PatchTower):
    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__(spec, ConvMerger)
        self.pre_norm = make_norm("layer", spec.block.hidden_size, spec.block.norm_eps)

    def largest_grids(self, patches: int) -> list[Grid]:
        """Whole pictures: a window has fewer patches, and they attend to fewer."""
        assert self.spec.position_grid is not None
        side = self.spec.position_grid.side
        return [(-(-patches // side**2), side, side)]

    def embed(self, batch: TowerBatch) -> torch.Tensor:
        normed: torch.Tensor = self.pre_norm(super().embed(batch))
        return normed

    def merge(self, hidden: torch.Tensor, batch: TowerBatch, split: SequenceSplit | None) -> torch.Tensor:
        """With `split` every rank has all patches for this: a row sees more than its own."""
        if split is None:
            rows: torch.Tensor = self.merger(hidden, batch.row_col, batch.grid_size)
            return rows
        unit = self.spec.merge_size**2
        patches = tuple((first * unit, count * unit) for first, count in split.rows)
        rows = self.merger(split.group.all_gather(hidden, patches, dim=0), batch.row_col, batch.grid_size)
        first, count = split.rows[split.group.rank]
        own: torch.Tensor = rows[first : first + count]
        return own
