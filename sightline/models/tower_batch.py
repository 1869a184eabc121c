"""What a PatchTower reads: patches, and the index tensors that follow from grids, by arithmetic on whole arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.ops.patch_positions import patch_positions
from sightline.ops.transfer import send
from sightline.spec import PatchTowerSpec
from sightline.types import Grid

Ints = NDArray[np.int64]


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


def make_tower_batch(
    patches: Sequence[torch.Tensor], grids: Sequence[Grid], spec: PatchTowerSpec, device: torch.device
) -> TowerBatch:
    """One tensor of patches per grid, already on the device."""
    shapes = np.array(grids, np.int64).reshape(-1, 3)
    assert [len(part) for part in patches] == shapes.prod(1).tolist(), (grids, [part.shape for part in patches])
    starts = np.concatenate(([0], np.cumsum(shapes.prod(1))))
    row_col, grid_size = patch_positions(
        send(shapes.astype(np.int32), device), send(starts.astype(np.int32), device), int(starts[-1]), spec.merge_size
    )
    lengths = np.repeat(shapes[:, 1] * shapes[:, 2], shapes[:, 0])
    windows = None
    if spec.window is not None:
        unit = spec.merge_size**2
        side = spec.window.window_pixels // spec.patch_embed.patch_size // spec.merge_size
        order, counts = window_order(shapes, spec.merge_size, side)
        on_device = send(order, device)
        row_col = row_col.view(-1, unit, 2)[on_device].view(-1, 2)
        windows = WindowLayout(
            order=on_device,
            inverse=send(np.argsort(order), device),
            starts=_starts(counts * unit, device),
            lengths=tuple((counts * unit).tolist()),
        )
    return TowerBatch(
        patches=_join_equal_widths(patches),
        row_col=row_col,
        grid_size=grid_size,
        segment_starts=_starts(lengths, device),
        segment_lengths=tuple(lengths.tolist()),
        windows=windows,
    )


def window_order(shapes: Ints, merge: int, side: int) -> tuple[Ints, Ints]:
    """Merged tokens sorted by window (side x side of them, fewer at the edges), and how many each window has.

    Windows never cross a frame, so the order stays inside frames and whole-frame attention keeps its segments.
    """
    merged = shapes // [1, merge, merge]
    down, across = -(-merged[:, 1] // side), -(-merged[:, 2] // side)
    first_window = np.concatenate(([0], np.cumsum(merged[:, 0] * down * across)[:-1]))
    counts = merged.prod(1)
    wide, high = np.repeat(merged[:, 2], counts), np.repeat(merged[:, 1], counts)
    frame, inside = np.divmod(_numbers(counts), high * wide)
    row, col = np.divmod(inside, wide)
    across, down = np.repeat(across, counts), np.repeat(down, counts)
    window = np.repeat(first_window, counts) + frame * down * across + (row // side) * across + col // side
    return np.argsort(window, kind="stable"), np.bincount(window)


def _numbers(counts: Ints) -> Ints:
    """0, 1, … count - 1 for each count, one after another."""
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(starts, counts)


def _starts(lengths: Ints, device: torch.device) -> torch.Tensor:
    return send(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32), device)


def _join_equal_widths(patches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Neighbours of equal width (all stills, or all videos) become one tensor, so that they share one product."""
    joined: list[list[torch.Tensor]] = []
    for part in patches:
        if joined and joined[-1][0].shape[1] == part.shape[1]:
            joined[-1].append(part)
        else:
            joined.append([part])
    return tuple(torch.cat(group) if len(group) > 1 else group[0] for group in joined)


def square_grid(patches: int, merge: int) -> Grid:
    """One frame of at least so many patches, about as high as wide, sides multiples of `merge`."""
    height = max(1, math.isqrt(patches) // merge) * merge
    return 1, height, -(-patches // (height * merge)) * merge
