"""Tensors of 8-bit floats that take their scales along: joined, stacked, permuted, reshaped and cut like plain ones.

Scales are a tensor of the same number of axes. Along an axis a scale serves `blocks[axis]` numbers: 1, 128, or all of them.
Where scales cannot go along (a block would reach over a seam, a cut is within a block) the result is plain numbers in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from sightline.models.weights.boxes import Box, axis_groups, sizes, whole
from sightline.models.weights.expressions import TensorShape

ALL = 0  # in `blocks`: one scale for the whole axis


@dataclass(frozen=True)
class Scaled:
    values: torch.Tensor  # 8-bit floats, any shape
    scale: torch.Tensor  # float32, along each axis ceil(size / block), or 1
    blocks: tuple[int, ...]

    @property
    def shape(self) -> TensorShape:
        return tuple(self.values.shape)

    def dequantise(self) -> torch.Tensor:
        return dequantise_box(self.values, self.scale, self.blocks, whole(self.shape))


Value: TypeAlias = torch.Tensor | Scaled


def scale_box(blocks: tuple[int, ...], box: Box) -> Box:
    """The scales that serve the numbers of a box."""
    return tuple(
        (0, 1) if block == ALL else (start // block, -(-stop // block))
        for block, (start, stop) in zip(blocks, box, strict=True)
    )


def is_whole_blocks(blocks: tuple[int, ...], shape: TensorShape, box: Box) -> bool:
    """Whether a box of a tensor ends between blocks, or where the tensor does; so ranks with even shares decide alike."""
    return all(
        block == ALL or (start % block == 0 and (stop % block == 0 or stop == size))
        for block, size, (start, stop) in zip(blocks, shape, box, strict=True)
    )


def dequantise_box(values: torch.Tensor, scale: torch.Tensor, blocks: tuple[int, ...], box: Box) -> torch.Tensor:
    """The numbers of a box, in float32. `scale` is that of `scale_box`."""
    for axis, (block, (start, stop)) in enumerate(zip(blocks, box, strict=True)):
        if block > 1:
            index = torch.arange(start, stop, device=scale.device) // block - start // block
            scale = scale.index_select(axis, index)
    return values.float() * scale


def plain(value: Value) -> torch.Tensor:
    return value.dequantise() if isinstance(value, Scaled) else value


def cast(value: Value, dtype: torch.dtype) -> torch.Tensor:
    return plain(value).to(dtype)


def cut(value: Value, box: Box) -> Value:
    if box == whole(tuple(value.shape)):
        return value
    index = tuple(slice(start, stop) for start, stop in box)
    if isinstance(value, torch.Tensor):
        return value[index]
    scale = value.scale[tuple(slice(start, stop) for start, stop in scale_box(value.blocks, box))]
    if is_whole_blocks(value.blocks, value.shape, box):
        return Scaled(value.values[index], scale, value.blocks)
    return dequantise_box(value.values[index], scale, value.blocks, box)


def concat(parts: Sequence[Value], axis: int) -> Value:
    if len(parts) == 1:
        return parts[0]
    scaled = [part for part in parts if isinstance(part, Scaled)]
    if not scaled:
        return torch.cat([plain(part) for part in parts], axis)
    if len(scaled) < len(parts) or not _can_join(scaled, axis):
        return torch.cat([plain(part).float() for part in parts], axis)
    values, scale = (torch.cat(tensors, axis) for tensors in zip(*((part.values, part.scale) for part in scaled), strict=True))
    return Scaled(values, scale, scaled[0].blocks)


def _can_join(parts: list[Scaled], axis: int) -> bool:
    """Whether the parts' scales joined are the scales of the parts joined: a block must not reach over a seam."""
    block = parts[0].blocks[axis]
    same = all(part.blocks == parts[0].blocks for part in parts)
    return same and block != ALL and all(part.shape[axis] % block == 0 for part in parts[:-1])


def stack(parts: Sequence[Value]) -> Value:
    scaled = [part for part in parts if isinstance(part, Scaled)]
    if not scaled:
        return torch.stack([plain(part) for part in parts])
    if len(scaled) < len(parts) or len({part.blocks for part in scaled}) > 1:
        return torch.stack([plain(part).float() for part in parts])
    values, scale = (torch.stack(tensors) for tensors in zip(*((part.values, part.scale) for part in scaled), strict=True))
    return Scaled(values, scale, (1, *scaled[0].blocks))


def permute(value: Value, order: tuple[int, ...]) -> Value:
    if isinstance(value, torch.Tensor):
        return value.permute(order)
    return Scaled(value.values.permute(order), value.scale.permute(order), tuple(value.blocks[axis] for axis in order))


def reshape(value: Value, shape: TensorShape) -> Value:
    if isinstance(value, torch.Tensor):
        return value.reshape(shape)
    blocks = _reshaped_blocks(value, shape)
    if blocks is None:
        return value.dequantise().reshape(shape)
    grid = sizes(scale_box(blocks, whole(shape)))
    return Scaled(value.values.reshape(shape), value.scale.reshape(grid), blocks)


def _reshaped_blocks(value: Scaled, shape: TensorShape) -> tuple[int, ...] | None:
    """Numbers per scale after a reshape, if the scales can be reshaped along: blocks stay within the innermost axis."""
    blocks = [1] * len(shape)
    for (first, last), (start, stop) in axis_groups(value.shape, shape):
        old = [axis for axis in range(first, last) if value.shape[axis] > 1]
        new = [axis for axis in range(start, stop) if shape[axis] > 1]
        if not old:
            continue
        kinds = {value.blocks[axis] for axis in old}
        if kinds == {ALL}:
            for axis in new:
                blocks[axis] = ALL
        elif len(old) == len(new) == 1:
            blocks[new[0]] = value.blocks[old[0]]
        else:
            inner = value.blocks[old[-1]]
            if {value.blocks[axis] for axis in old[:-1]} - {1} or inner == ALL:
                return None
            if value.shape[old[-1]] % inner or shape[new[-1]] % inner:
                return None
            blocks[new[-1]] = inner
    return tuple(blocks)
