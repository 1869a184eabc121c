"""Grids of images and videos to the index tensors the tower reads. Built on the host, sent in one go per tensor."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.models.inputs import TowerBatch, WindowLayout
from sightline.spec import VisionSpec

Grid = tuple[int, int, int]  # frames / temporal_patch, rows, columns, in patches


def make_tower_batch(
    patches: Sequence[torch.Tensor], grids: Sequence[Grid], spec: VisionSpec, device: torch.device
) -> TowerBatch:
    """One tensor of patches per grid, already on the device."""
    for part, (frames, rows, columns) in zip(patches, grids, strict=True):
        assert part.shape[0] == frames * rows * columns, (part.shape, (frames, rows, columns))
    row_col = np.concatenate([merge_order(grid, spec.merge_size) for grid in grids])
    grid_size = np.repeat(np.array([grid[1:] for grid in grids], np.int32), [np.prod(grid) for grid in grids], axis=0)
    lengths = tuple(rows * columns for frames, rows, columns in grids for _ in range(frames))
    windows = None
    if spec.window is not None:
        side = spec.window.window_pixels // spec.patch_size // spec.merge_size
        order, window_lengths = window_order(grids, spec.merge_size, side)
        unit = spec.merge_size**2
        row_col = row_col.reshape(-1, unit, 2)[order].reshape(-1, 2)
        window_lengths = tuple(count * unit for count in window_lengths)
        windows = WindowLayout(
            order=torch.from_numpy(order).to(device),
            inverse=torch.from_numpy(np.argsort(order)).to(device),
            starts=_starts(window_lengths, device),
            lengths=window_lengths,
        )
    return TowerBatch(
        patches=_join_equal_widths(patches),
        row_col=torch.from_numpy(row_col).to(device),
        grid_size=torch.from_numpy(grid_size).to(device),
        segment_starts=_starts(lengths, device),
        segment_lengths=lengths,
        windows=windows,
    )


def merge_order(grid: Grid, merge: int) -> NDArray[np.int32]:
    """(row, col) of each patch in sequence order: merge x merge blocks one after another, row by row inside. [patches, 2]"""
    frames, rows, columns = grid
    row, col = np.meshgrid(np.arange(rows, dtype=np.int32), np.arange(columns, dtype=np.int32), indexing="ij")
    blocks = np.stack((row, col), axis=-1).reshape(rows // merge, merge, columns // merge, merge, 2).swapaxes(1, 2)
    return np.tile(blocks.reshape(-1, 2), (frames, 1))


def window_order(grids: Sequence[Grid], merge: int, side: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Merged tokens sorted by window (side x side of them, smaller at the edges), and how many each window has.

    Windows never cross a frame, so the order stays inside frames and whole-frame attention keeps its segments.
    """
    orders, lengths, first = [], [], 0
    for frames, rows, columns in grids:
        high, wide = rows // merge, columns // merge
        row, col = np.divmod(np.arange(high * wide), wide)
        window = (row // side) * -(-wide // side) + col // side
        inside = np.argsort(window, kind="stable")
        counts = np.bincount(window).tolist()
        for frame in range(frames):
            orders.append(first + frame * high * wide + inside)
            lengths.extend(counts)
        first += frames * high * wide
    return np.concatenate(orders), tuple(lengths)


def _starts(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)).to(device)


def _join_equal_widths(patches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Neighbours of equal width (all stills, or all videos) become one tensor, so that they share one product."""
    joined: list[list[torch.Tensor]] = []
    for part in patches:
        if joined and joined[-1][0].shape[1] == part.shape[1]:
            joined[-1].append(part)
        else:
            joined.append([part])
    return tuple(torch.cat(group) if len(group) > 1 else group[0] for group in joined)
