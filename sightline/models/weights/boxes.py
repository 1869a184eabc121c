"""Boxes of indices, and which box of a tensor a box of its reshaped form is."""

import math
from collections.abc import Iterator
from typing import TypeAlias

from sightline.models.weights.expressions import TensorShape

Box: TypeAlias = tuple[tuple[int, int], ...]  # for each axis its first index, and the one after its last


def whole(shape: TensorShape) -> Box:
    return tuple((0, size) for size in shape)


def sizes(box: Box) -> TensorShape:
    return tuple(stop - start for start, stop in box)


def within(box: Box, outer: Box) -> Box:
    """`box` counted from the first indices of `outer`."""
    return tuple((start - first, stop - first) for (start, stop), (first, _) in zip(box, outer, strict=True))


def box_before_reshape(old: TensorShape, new: TensorShape, box: Box) -> tuple[Box, Box]:
    """A box of the old shape and the box of the new shape that has its numbers in the same order; the latter holds `box`.

    Axes that split or merge go in groups. A box that is one run of numbers within a group, and a box on both sides, goes
    through as it is. Of another, such as the first half of each head's rows, the smallest run that has it is taken; where that
    run is no box before the reshape, such as rows that end within a head, the whole group is.
    """
    before, after = list(whole(old)), list(whole(new))
    for (first, last), (start, stop) in axis_groups(old, new):
        run = _run(new[start:stop], box[start:stop])
        old_part, new_part = _run_as_box(old[first:last], *run), _run_as_box(new[start:stop], *run)
        if old_part is not None and new_part is not None:
            before[first:last], after[start:stop] = old_part, new_part
    return tuple(before), tuple(after)


def axis_groups(old: TensorShape, new: TensorShape) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The smallest groups of neighbouring axes, from axis to axis on either side, with as many numbers before as after."""
    i = j = 0
    while i < len(old) or j < len(new):
        first, start, before, after = i, j, 1, 1
        while True:
            if before <= after and i < len(old):
                before, i = before * old[i], i + 1
            else:
                after, j = after * new[j], j + 1
            if before == after and before > 1:
                break
            if i == len(old) and j == len(new):
                break  # axes of size 1 alone
        while before > 1 and i < len(old) and old[i] == 1:
            i += 1
        while before > 1 and j < len(new) and new[j] == 1:
            j += 1
        yield (first, i), (start, j)


def _run(shape: TensorShape, box: Box) -> tuple[int, int]:
    """Start and length of the smallest run of numbers, in memory's order, that has the box and is a box itself."""
    lengths = sizes(box)
    axis = next((axis for axis, length in enumerate(lengths) if length > 1), len(shape) - 1)
    starts = [start if index <= axis else 0 for index, (start, _) in enumerate(box)]
    strides = [math.prod(shape[index + 1 :]) for index in range(len(shape))]
    first = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    return first, (lengths[axis] * strides[axis] if shape else 1)


def _run_as_box(shape: TensorShape, first: int, length: int) -> Box | None:
    """The box with exactly the numbers of a run, if there is one."""
    if not shape:
        return ()
    for axis, size in enumerate(shape):
        stride = math.prod(shape[axis + 1 :])
        start, outer = first // stride % size, first // stride // size
        if first % stride or length % stride or start + length // stride > size:
            continue
        leading: list[tuple[int, int]] = []
        for before in reversed(shape[:axis]):
            outer, index = divmod(outer, before)
            leading.insert(0, (index, index + 1))
        return (*leading, (start, start + length // stride), *whole(shape[axis + 1 :]))
    return None
