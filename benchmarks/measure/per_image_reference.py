"""The way into a tower as vision-language models are usually written in torch: a convolution, and loops over images.

It is what the batched way is measured against, and gives the same numbers.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from sightline.spec import PositionGridSpec
from sightline.types import Grid


def embed_patches(patches: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """patches [n, channels * time * side * side], kernel [size, channels, time, side, side]. Returns [n, size]."""
    volumes = patches.view(-1, *kernel.shape[1:])
    return F.conv3d(volumes, kernel, bias, stride=kernel.shape[2:]).view(patches.shape[0], -1)


def add_positions(
    hidden: torch.Tensor, table: torch.Tensor, grids: Sequence[Grid], merge: int, grid: PositionGridSpec
) -> torch.Tensor:
    """hidden [patches, size] plus the table [side * side, size], resampled for one image after another."""
    resample = _bilinear if grid.mode == "bilinear" else _bicubic
    found = []
    for time, height, width in grids:
        positions = resample(table, grid.side, height, width)  # [height, width, size]
        found.append(_in_merge_order(positions, merge).repeat(time, 1))
    return hidden + torch.cat(found)


def _bilinear(table: torch.Tensor, side: int, height: int, width: int) -> torch.Tensor:
    """Corners meet corners."""
    rows = torch.linspace(0, side - 1, height, device=table.device)
    columns = torch.linspace(0, side - 1, width, device=table.device)
    row, column = rows.int(), columns.int()
    next_row, next_column = (row + 1).clamp(max=side - 1), (column + 1).clamp(max=side - 1)
    down, right = rows - row, columns - column
    total = torch.zeros(height, width, table.shape[1], dtype=table.dtype, device=table.device)
    for at_row, row_weight in ((row, 1 - down), (next_row, down)):
        for at_column, column_weight in ((column, 1 - right), (next_column, right)):
            index = at_row[:, None] * side + at_column[None, :]
            weight = row_weight[:, None] * column_weight[None, :]
            total = total + table[index] * weight[..., None].to(table.dtype)
    return total


def _bicubic(table: torch.Tensor, side: int, height: int, width: int) -> torch.Tensor:
    """Centres of cells; the border repeats."""
    picture = table.view(1, side, side, -1).permute(0, 3, 1, 2).float()
    rows = (torch.arange(height, device=table.device) + 0.5) / height * 2 - 1
    columns = (torch.arange(width, device=table.device) + 0.5) / width * 2 - 1
    places = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)[None]
    found = F.grid_sample(picture, places, mode="bicubic", align_corners=False, padding_mode="border")
    return found[0].permute(1, 2, 0).to(table.dtype)


def rotary_positions(grids: Sequence[Grid], merge: int, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every patch, [patches, 4 * frequencies] each; frequencies [n]."""
    device = frequencies.device
    places = []
    for time, height, width in grids:
        rows = torch.arange(height, device=device)[:, None].expand(height, width)
        columns = torch.arange(width, device=device)[None, :].expand(height, width)
        places.append(_in_merge_order(torch.stack((rows, columns), -1), merge).repeat(time, 1))
    longest = max(max(height, width) for _, height, width in grids)
    table = torch.outer(torch.arange(longest, device=device, dtype=torch.float32), frequencies)
    angles = table[torch.cat(places)].flatten(1)
    both = torch.cat((angles, angles), -1)
    return both.cos(), both.sin()


def _in_merge_order(values: torch.Tensor, merge: int) -> torch.Tensor:
    """[height, width, n] to [height * width, n]: blocks of merge x merge follow one another."""
    height, width, numbers = values.shape
    blocks = values.reshape(height // merge, merge, width // merge, merge, numbers)
    return blocks.permute(0, 2, 1, 3, 4).reshape(-1, numbers)
