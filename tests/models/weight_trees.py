"""Random trees of stored tensors for hypothesis, what they mean, worked out slowly on whole tensors, and what is read."""

import math
from itertools import count

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from sightline.models.checkpoint import Checkpoint
from sightline.models.weight_table import WeightTable
from sightline.models.weights.boxes import Box
from sightline.models.weights.evaluate import evaluate
from sightline.models.weights.expressions import (
    Cast,
    Concat,
    Part,
    Permute,
    Reshape,
    Share,
    Stack,
    Stored,
    TensorShape,
    Weight,
    stored_in,
)
from sightline.models.weights.scaled import plain

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
SHAPES = st.lists(SIZES, min_size=1, max_size=3).map(tuple)


@st.composite
def trees(draw: DrawFn, reshapes: bool = True, depth: int = 4) -> Weight:
    return _tree(draw, draw(SHAPES), depth, count(), reshapes)


def _tree(draw: DrawFn, shape: TensorShape, depth: int, numbers: "count[int]", reshapes: bool) -> Weight:
    """A tree of that shape, chosen from the top down."""

    def inner(part: TensorShape) -> Weight:
        return _tree(draw, part, depth - 1, numbers, reshapes)

    wide = [axis for axis, size in enumerate(shape) if size > 1]
    kinds = ["permute", "part"] + (["reshape"] if reshapes else [])
    kinds += (["concat"] if wide else []) + (["stack"] if len(shape) > 1 and shape[0] <= 4 else [])
    kind = draw(st.sampled_from(kinds)) if depth else "stored"
    if kind == "permute":
        order = draw(st.permutations(range(len(shape))))
        return Permute(tuple(order), inner(tuple(shape[order.index(axis)] for axis in range(len(shape)))))
    if kind == "part":
        axis = draw(st.integers(0, len(shape) - 1))
        before, after = draw(st.sampled_from([0, 1, 4])), draw(st.sampled_from([0, 3, 4]))
        return Part(axis, before, shape[axis], inner((*shape[:axis], before + shape[axis] + after, *shape[axis + 1 :])))
    if kind == "reshape":
        return Reshape(shape, inner(draw(_same_numbers(math.prod(shape)))))
    if kind == "concat":
        axis = draw(st.sampled_from(wide))
        seam = draw(st.integers(1, shape[axis] - 1))
        lengths = (seam, shape[axis] - seam)
        return Concat(axis, tuple(inner((*shape[:axis], length, *shape[axis + 1 :])) for length in lengths))
    if kind == "stack":
        return Stack(tuple(inner(shape[1:]) for _ in range(shape[0])))
    return Stored(f"tensor.{next(numbers)}", shape)


@st.composite
def _same_numbers(draw: DrawFn, numbers: int) -> TensorShape:
    """A shape with so many numbers."""
    shape = []
    while numbers > 1 and len(shape) < 3:
        shape.append(draw(st.sampled_from([size for size in range(1, numbers + 1) if numbers % size == 0])))
        numbers //= shape[-1]
    return (*shape, numbers) if numbers > 1 or not shape else tuple(shape)


@st.composite
def shares(draw: DrawFn, shape: TensorShape) -> Share:
    axis = draw(st.integers(0, len(shape) - 1))
    spans = []
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, shape[axis] - 1))
        spans.append((start, draw(st.integers(1, shape[axis] - start))))
    return Share(axis, tuple(spans))


def random_tensors(weight: Weight) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {stored.name: torch.randn(stored.shape, generator=generator) for stored in stored_in(weight)}


def meaning(weight: Weight, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The whole parameter by plain torch on whole tensors."""
    match weight:
        case Stored():
            return tensors[weight.name]
        case Concat():
            return torch.cat([meaning(part, tensors) for part in weight.parts], weight.axis)
        case Stack():
            return torch.stack([meaning(part, tensors) for part in weight.parts])
        case Permute():
            return meaning(weight.part, tensors).permute(weight.order)
        case Reshape():
            return meaning(weight.part, tensors).reshape(weight.shape)
        case Part():
            return meaning(weight.part, tensors).narrow(weight.axis, weight.start, weight.length)
        case Cast():
            return meaning(weight.part, tensors).to(getattr(torch, weight.dtype))


def share_of(tensor: torch.Tensor, share: Share) -> torch.Tensor:
    return torch.cat([tensor.narrow(share.axis, start, length) for start, length in share.spans], share.axis)


def uses(table: WeightTable) -> dict[str, torch.Tensor]:
    """For each stored tensor of a table, how often each of its numbers is used, found by sending indices through the table."""
    starts, total = {}, 0
    for name, tensor in table.stored().items():
        starts[name], total = total, total + math.prod(tensor.shape)
    everything = torch.zeros(total, dtype=torch.int64)

    def read(tensor: Stored, box: Box) -> torch.Tensor:
        indices = starts[tensor.name] + torch.arange(math.prod(tensor.shape)).reshape(tensor.shape)
        return indices[tuple(slice(start, stop) for start, stop in box)]

    for weight in table.values():
        found = plain(evaluate(weight.part if isinstance(weight, Cast) else weight, read))
        everything += torch.bincount(found.flatten(), minlength=total)
    ends = [*list(starts.values())[1:], total]
    return {name: everything[start:end] for (name, start), end in zip(starts.items(), ends, strict=True)}


def count_bytes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Names and bytes of what is read from checkpoints from now on."""
    counted: list[tuple[str, int]] = []
    plain_read = Checkpoint.read

    def read(self: Checkpoint, name: str, box: Box | None = None) -> torch.Tensor:
        tensor = plain_read(self, name, box)
        counted.append((name, tensor.numel() * tensor.element_size()))
        return tensor

    monkeypatch.setattr(Checkpoint, "read", read)
    return counted
