"""Matrices that a checkpoint stores as 8-bit floats: which they are, whether their scales fit, and reading them.

x.weight                e4m3 [out, size]
x.weight_scale          [out, 1] or [out], a scale per channel; [1] or [], one for all of them
x.weight_scale_inv      [ceil(out / 128), ceil(size / 128)], a scale per block (a factor, whatever the name says)

One tensor may hold the matrices of all experts: it and its scales then begin with an axis of experts, and both are transposed
if one of them is ([experts, size, out]: [experts, 1, out], [experts, ceil(size / 128), ceil(out / 128)]).
"""

import torch

from sightline.errors import CheckpointError
from sightline.models.checkpoint import Checkpoint
from sightline.models.fp8 import Fp8Weight
from sightline.models.weight_table import WeightTable
from sightline.models.weights.boxes import Box
from sightline.models.weights.expressions import Stored, TensorShape
from sightline.models.weights.scaled import ALL, Scaled, Value, dequantise_box, is_whole_blocks, scale_box
from sightline.ops.fp8 import BLOCK, FP8
from sightline.spec import Fp8Spec

_STORED_FP8 = "F8_E4M3"  # safetensors' name of the dtype


class StoredFp8:
    """The quantised matrices of a checkpoint, by canonical name, each with the name of its scales."""

    def __init__(self, checkpoint: Checkpoint, table: WeightTable, spec: Fp8Spec | None) -> None:
        self._checkpoint = checkpoint
        self._has_blocks = spec is not None and spec.scales == "block"
        self.scales: dict[str, str] = {}
        present = checkpoint.names()
        for name, stored in table.stored().items():
            dtype = checkpoint.dtype(name) if name in present else ""
            if dtype.startswith("F8"):
                self.scales[name] = self._find_scale(stored, dtype, spec, present)

    def _find_scale(self, stored: Stored, dtype: str, spec: Fp8Spec | None, present: set[str]) -> str:
        name = self._checkpoint.stored_name(stored.name)
        if spec is None:
            raise CheckpointError(f"Tensor '{name}' is {dtype}, but config.json has no 'quantization_config'.")
        if dtype != _STORED_FP8 or len(stored.shape) != 2 + stored.experts:
            raise CheckpointError(f"Tensor '{name}' is {dtype}, but only matrices of weights may be, and only {_STORED_FP8}.")
        scale = stored.name + spec.scale_suffix
        if scale not in present:
            raise CheckpointError(f"Tensor '{name}' is {dtype}, but the checkpoint lacks its scales '{scale}'.")
        allowed = self._scale_shapes(stored)
        if self._checkpoint.shape(scale) not in allowed:
            found = list(self._checkpoint.shape(scale))
            raise CheckpointError(
                f"Tensor '{self._checkpoint.stored_name(scale)}' has the shape {found}, expected {list(allowed[0])}."
            )
        return scale

    def _blocks(self, stored: Stored) -> tuple[int, ...]:
        """Along each axis of the tensor, how many numbers share a scale."""
        experts, matrix = len(stored.shape) - 2, range(len(stored.shape) - 2, len(stored.shape))
        if self._has_blocks:
            return (1,) * experts + (BLOCK, BLOCK)
        return (1,) * experts + tuple(1 if axis == stored.out_axis else ALL for axis in matrix)

    def _scale_shapes(self, stored: Stored) -> list[TensorShape]:
        """The shapes in which scales are stored, the usual one first: a scale per block, per channel, or one for a matrix."""
        grid = tuple(stop for _, stop in scale_box(self._blocks(stored), tuple((0, size) for size in stored.shape)))
        if self._has_blocks:
            return [grid]
        channels = (*stored.shape[: stored.experts], stored.shape[stored.out_axis])
        return [grid, channels] if stored.experts else [grid, channels, (1,), ()]

    def read(self, stored: Stored, box: Box) -> Value:
        """A box of a tensor. Of a quantised one as stored if it ends between blocks, else in float32."""
        values = self._checkpoint.read(stored.name, box)
        if stored.name not in self.scales:
            return values
        assert values.dtype == FP8
        blocks = self._blocks(stored)
        scale = self._read_scale(stored, scale_box(blocks, box))
        if is_whole_blocks(blocks, stored.shape, box):
            return Scaled(values, scale, blocks)
        return dequantise_box(values, scale, blocks, box)

    def _read_scale(self, stored: Stored, box: Box) -> torch.Tensor:
        """A box of the grid of scales, whichever of its shapes is stored."""
        name = self.scales[stored.name]
        grid, found = self._scale_shapes(stored)[0], self._checkpoint.shape(name)
        if found == grid:
            return self._checkpoint.read(name, box).float()
        scale = self._checkpoint.read(name).float()  # a few numbers: not worth cutting in the file
        whole = scale.expand(grid) if scale.numel() == 1 else scale.reshape(grid)
        return whole[tuple(slice(start, stop) for start, stop in box)]


def as_parameter(value: Value) -> "torch.Tensor | Fp8Weight":
    """What a model is given: 8-bit floats if their scales are per output channel or per block, as its layers have them."""
    if not isinstance(value, Scaled):
        return value
    experts = (1,) * (len(value.blocks) - 2)
    if value.blocks == (*experts, BLOCK, BLOCK):
        return Fp8Weight(value.values, value.scale)
    if value.blocks == (*experts, 1, ALL):
        return Fp8Weight(value.values, value.scale.squeeze(-1))
    return value.dequantise()
