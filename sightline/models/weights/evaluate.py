"""A parameter's value from its tree: only the numbers that it needs are read."""

from collections.abc import Callable
from typing import TypeAlias

import torch

from sightline.models.weights import scaled
from sightline.models.weights.boxes import Box, box_before_reshape, sizes, whole, within
from sightline.models.weights.expressions import Cast, Concat, Part, Permute, Reshape, Stack, Stored, Weight
from sightline.models.weights.scaled import Value

Read: TypeAlias = Callable[[Stored, Box], Value]  # a box of a stored tensor


def evaluate(weight: Weight, read: Read, box: Box | None = None) -> Value:
    """The parameter, or a box of it. Views where they do: the result may be neither contiguous nor a copy."""
    box = whole(weight.shape) if box is None else box
    match weight:
        case Stored():
            return read(weight, box)
        case Cast():
            wide = scaled.cast(evaluate(weight.part, read, box), getattr(torch, weight.dtype))
            return wide + weight.plus if weight.plus else wide
        case Part():
            start, stop = box[weight.axis]
            moved = (start + weight.start, stop + weight.start)
            return evaluate(weight.part, read, (*box[: weight.axis], moved, *box[weight.axis + 1 :]))
        case Permute():
            inner = tuple(box[weight.order.index(axis)] for axis in range(len(box)))
            return scaled.permute(evaluate(weight.part, read, inner), weight.order)
        case Stack():
            start, stop = box[0]
            return scaled.stack([evaluate(part, read, box[1:]) for part in weight.parts[start:stop]])
        case Concat():
            return _concat(weight, read, box)
        case Reshape():
            # The one node that a box does not always go through: see box_before_reshape for what is read then.
            before, after = box_before_reshape(weight.part.shape, weight.shape, box)
            value = scaled.reshape(evaluate(weight.part, read, before), sizes(after))
            return scaled.cut(value, within(box, after))


def _concat(weight: Concat, read: Read, box: Box) -> Value:
    """Only the parts that the box meets are read."""
    axis, found, seam = weight.axis, [], 0
    for part in weight.parts:
        size = part.shape[axis]
        start, stop = max(box[axis][0] - seam, 0), min(box[axis][1] - seam, size)
        if start < stop:
            found.append(evaluate(part, read, (*box[:axis], (start, stop), *box[axis + 1 :])))
        seam += size
    return scaled.concat(found, axis)
