"""Index tensors of the tower against slow, obvious loops. Red when merge order, windows or boundaries change."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.models.tower_batch import window_order
from sightline.ops.patch_positions import patch_positions

sides = st.integers(1, 7).map(lambda n: 2 * n)
grids = st.lists(st.tuples(st.integers(1, 3), sides, sides), min_size=1, max_size=5)


def slow_merge_order(shapes: list[tuple[int, int, int]], merge: int) -> list[tuple[int, int]]:
    found = []
    for frames, rows, columns in shapes:
        for _ in range(frames):
            for top in range(0, rows, merge):
                for left in range(0, columns, merge):
                    found += [(top + i, left + j) for i in range(merge) for j in range(merge)]
    return found


def slow_windows(shapes: list[tuple[int, int, int]], merge: int, side: int) -> list[list[int]]:
    windows, first = [], 0
    for frames, rows, columns in shapes:
        high, wide = rows // merge, columns // merge
        for _ in range(frames):
            for top in range(0, high, side):
                for left in range(0, wide, side):
                    inside = range(top, min(top + side, high)), range(left, min(left + side, wide))
                    windows.append([first + row * wide + col for row in inside[0] for col in inside[1]])
            first += high * wide
    return windows


@settings(max_examples=200, deadline=None)
@given(grids)
def test_merge_order(shapes: list[tuple[int, int, int]]) -> None:
    starts = [0, *itertools.accumulate(t * h * w for t, h, w in shapes)]
    row_col, size = patch_positions(torch.tensor(shapes).int(), torch.tensor(starts).int(), starts[-1], 2)
    assert [tuple(pair) for pair in row_col.tolist()] == slow_merge_order(shapes, 2)
    assert size.tolist() == [[h, w] for t, h, w in shapes for _ in range(t * h * w)]


@settings(max_examples=200, deadline=None)
@given(grids, st.sampled_from([1, 2, 4]))
def test_window_order(shapes: list[tuple[int, int, int]], side: int) -> None:
    order, counts = window_order(np.array(shapes), 2, side)
    expected = slow_windows(shapes, 2, side)
    assert order.tolist() == [token for window in expected for token in window]
    assert counts.tolist() == [len(window) for window in expected]


@pytest.mark.parametrize("images", [1, 500])
def test_no_loop_over_images(images: int) -> None:
    """The number of numpy calls does not grow with the number of images."""
    import sys

    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    shapes = np.array([(1, 4, 6)] * images)
    sys.setprofile(count)
    try:
        window_order(shapes, 2, 4)
    finally:
        sys.setprofile(None)
    assert calls < 150
