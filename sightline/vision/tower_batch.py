"""Grids of images and videos to the index tensors the tower reads: arithmetic on whole arrays, however many images."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.models.inputs import TowerBatch, WindowLayout
from sightline.ops.places import patch_places
from sightline.spec import VisionSpec
from sightline.vision.transfer import send

Grid = tuple[int, int, int]  # frames / temporal_patch, rows, columns, in patches
Ints = NDArray[np.int64]


def make_tower_batch(
    patches: Sequence[torch.Tensor], grids: Sequence[Grid], spec: VisionSpec, device: torch.device
) -> TowerBatch:
    """One tensor of patches per grid, already on the device."""
    shapes = np.array(grids, np.int64).reshape(-1, 3)
    assert [len(part) for part in patches] == shapes.prod(1).tolist(), (grids, [part.shape for part in patches])
    starts = np.concatenate(([0], np.cumsum(shapes.prod(1))))
    row_col, grid_size = patch_places(
        send(shapes.astype(np.int32), device), send(starts.astype(np.int32), device), int(starts[-1]), spec.merge_size
    )
    lengths = np.repeat(shapes[:, 1] * shapes[:, 2], shapes[:, 0])
    windows = None
    if spec.window is not None:
        unit = spec.merge_size**2
        order, counts = window_order(shapes, spec.merge_size, spec.window.window_pixels // spec.patch_size // spec.merge_size)
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
