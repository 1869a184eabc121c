"""How a parameter is made from stored tensors: a small tree of frozen nodes, each of which knows its shape.

    Concat(0, (Stored("q_proj.weight", (64, 32)), Stored("k_proj.weight", (16, 32))))      a matrix [80, 32]

A tree is data: it can be evaluated on a whole checkpoint or on a rank's share of it, on 8-bit floats with their scales, or on
indices to see which stored numbers a table uses (weights/evaluate.py). Building one needs no torch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

TensorShape: TypeAlias = tuple[int, ...]
FixedDtype: TypeAlias = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Stored:
    """A tensor of the checkpoint by its canonical name, with the exact shape that it must have."""

    name: str
    shape: TensorShape
    experts: bool = False  # axis 0 counts experts, each with a matrix of its own
    transposed: bool = False  # a matrix is [in, out], used as x @ w, not [out, in]
    mean: float | None = None  # of random ones that `model new` writes, where not the usual: those of vectors

    @property
    def out_axis(self) -> int:
        """The axis of output channels."""
        return int(self.experts) + int(self.transposed)

    @property
    def fan_in(self) -> int:
        """How many numbers each output is a sum over."""
        return math.prod(self.shape[self.experts :]) // self.shape[self.out_axis]


@dataclass(frozen=True)
class Concat:
    """Parts joined along an axis that they have."""

    axis: int
    parts: "tuple[Weight, ...]"

    def __post_init__(self) -> None:
        others = {(*part.shape[: self.axis], *part.shape[self.axis + 1 :]) for part in self.parts}
        assert len(others) == 1 and 0 <= self.axis < len(self.parts[0].shape), [part.shape for part in self.parts]

    @cached_property
    def shape(self) -> TensorShape:
        first = self.parts[0].shape
        return (*first[: self.axis], sum(part.shape[self.axis] for part in self.parts), *first[self.axis + 1 :])


@dataclass(frozen=True)
class Stack:
    """Parts of one shape along a new first axis."""

    parts: "tuple[Weight, ...]"

    def __post_init__(self) -> None:
        assert len({part.shape for part in self.parts}) == 1, [part.shape for part in self.parts]

    @cached_property
    def shape(self) -> TensorShape:
        return (len(self.parts), *self.parts[0].shape)


@dataclass(frozen=True)
class Permute:
    """Axes in another order, as torch.permute: axis i of the result is axis order[i] of the part."""

    order: tuple[int, ...]
    part: "Weight"

    def __post_init__(self) -> None:
        assert sorted(self.order) == list(range(len(self.part.shape))), (self.order, self.part.shape)

    @cached_property
    def shape(self) -> TensorShape:
        return tuple(self.part.shape[axis] for axis in self.order)


@dataclass(frozen=True)
class Reshape:
    """The same numbers in the same order in another shape."""

    shape: TensorShape
    part: "Weight"

    def __post_init__(self) -> None:
        assert math.prod(self.shape) == math.prod(self.part.shape), (self.shape, self.part.shape)


@dataclass(frozen=True)
class Part:
    """`length` indices of an axis, from `start` on."""

    axis: int
    start: int
    length: int
    part: "Weight"

    def __post_init__(self) -> None:
        stop, size = self.start + self.length, self.part.shape[self.axis]
        assert 0 <= self.start < stop <= size, (self.start, stop, size)

    @cached_property
    def shape(self) -> TensorShape:
        whole = self.part.shape
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])


@dataclass(frozen=True)
class Cast:
    """A parameter that has one dtype, whatever the model is loaded in. Stands at the top of a tree.

    `plus` is added in that dtype: a zero-centred norm stores w and scales by 1 + w, which bfloat16 would round.
    """

    dtype: FixedDtype
    part: "Weight"
    plus: float = 0.0

    @property
    def shape(self) -> TensorShape:
        return self.part.shape


Weight: TypeAlias = Stored | Concat | Stack | Permute | Reshape | Part | Cast


def transpose(part: Weight, first: int = -2, second: int = -1) -> Permute:
    order = list(range(len(part.shape)))
    order[first], order[second] = order[second], order[first]
    return Permute(tuple(order), part)


def flatten(part: Weight, start: int) -> Reshape:
    """All axes from `start` on as one."""
    return Reshape((*part.shape[:start], math.prod(part.shape[start:])), part)


def part_of_groups(part: Weight, axis: int, groups: int, start: int, length: int) -> Reshape:
    """An axis that is `groups` groups of equal size: `length` indices from `start` on of each of them, joined.

    Rows that are, head by head, 256 of q and then 256 of a gate: part_of_groups(rows, 0, heads, 0, 256) is q.
    """
    shape = part.shape
    assert shape[axis] % groups == 0, (shape, axis, groups)
    apart = Reshape((*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]), part)
    return Reshape((*shape[:axis], groups * length, *shape[axis + 1 :]), Part(axis + 1, start, length, apart))


@dataclass(frozen=True)
class Share:
    """What a rank has of a parameter: these (start, length) of one axis, joined.

    Several where a parameter is several matrices joined: of gate and up, a part of gate and the same part of up.
    """

    axis: int
    spans: tuple[tuple[int, int], ...]

    def of(self, weight: Weight) -> Weight:
        if isinstance(weight, Cast):
            return replace(weight, part=self.of(weight.part))
        parts = tuple(Part(self.axis, start, length, weight) for start, length in self.spans)
        return parts[0] if len(parts) == 1 else Concat(self.axis, parts)


def stored_in(weight: Weight) -> Iterator[Stored]:
    """The stored tensors of a tree, in its order; one that is used twice comes twice."""
    if isinstance(weight, Stored):
        yield weight
    elif isinstance(weight, Concat | Stack):
        for part in weight.parts:
            yield from stored_in(part)
    else:
        yield from stored_in(weight.part)
