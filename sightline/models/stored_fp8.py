"""Matrices that a checkpoint stores as 8-bit floats: which they are, whether their scales fit, and reading them.

x.weight                e4m3 [out, size]
x.weight_scale          [out, 1] or [out], a scale per channel; [1] or [], one for all of them
x.weight_scale_inv      [ceil(out / 128), ceil(size / 128)], a scale per block (a factor, whatever the name says)
"""

import torch

from sightline.errors import CheckpointError
from sightline.models.checkpoint import Checkpoint
from sightline.models.fp8 import Fp8Weight
from sightline.models.weight_table import Shape, Source, WeightTable
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
        for source in table.values():
            for name, shape in source.tensors:
                dtype = checkpoint.dtype(name) if name in present else ""
                if dtype.startswith("F8"):
                    self.scales[name] = self._find_scale(name, shape, dtype, spec, present)

    def _find_scale(self, name: str, shape: Shape, dtype: str, spec: Fp8Spec | None, present: set[str]) -> str:
        stored = self._checkpoint.stored_name(name)
        if spec is None:
            raise CheckpointError(f"Tensor '{stored}' is {dtype}, but config.json has no 'quantization_config'.")
        if dtype != _STORED_FP8 or len(shape) != 2 or not name.endswith(".weight"):
            raise CheckpointError(f"Tensor '{stored}' is {dtype}, but only matrices of weights may be, and only {_STORED_FP8}.")
        scale = name + spec.scale_suffix
        if scale not in present:
            raise CheckpointError(f"Tensor '{stored}' is {dtype}, but the checkpoint lacks its scales '{scale}'.")
        out, size = shape
        blocks = (-(-out // BLOCK), -(-size // BLOCK))
        allowed = [blocks] if spec.scales == "block" else [(out, 1), (out,), (1,), ()]
        if self._checkpoint.shape(scale) not in allowed:
            found = list(self._checkpoint.shape(scale))
            raise CheckpointError(
                f"Tensor '{self._checkpoint.stored_name(scale)}' has the shape {found}, expected {list(allowed[0])}."
            )
        return scale

    def read(self, source: Source) -> "Fp8Weight | torch.Tensor":
        """A parameter of which at least one part is quantised: as stored if its parts go together, else in float32."""
        parts = [self._part(name) for name, _ in source.tensors]
        quantised = [part for part in parts if isinstance(part, Fp8Weight)]
        if len(quantised) == len(parts) and _go_together(quantised):
            return Fp8Weight(torch.cat([part.values for part in quantised]), torch.cat([part.scale for part in quantised]))
        return torch.cat([part.dequantise() if isinstance(part, Fp8Weight) else part.float() for part in parts])

    def _part(self, name: str) -> "Fp8Weight | torch.Tensor":
        values = self._checkpoint.tensor(name)
        if name not in self.scales:
            return values
        assert values.dtype == FP8
        scale = self._checkpoint.tensor(self.scales[name]).float()
        if not self._has_blocks:
            scale = scale.flatten().expand(values.shape[0]).contiguous()
        return Fp8Weight(values, scale)


def _go_together(parts: list[Fp8Weight]) -> bool:
    """Whether the parts' scales stacked are the scales of the parts stacked: a block must not reach over a seam."""
    return not parts[0].has_blocks or all(part.values.shape[0] % BLOCK == 0 for part in parts[:-1])
