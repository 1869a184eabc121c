"""Matrices in 8-bit floats with their scales."""

from dataclasses import dataclass

import torch

from sightline.ops.fp8 import dequantise_blocks, quantise_blocks, quantise_channels


@dataclass(frozen=True)
class Fp8Weight:
    """A matrix in 8-bit floats with its scales, or one for each expert."""

    values: torch.Tensor  # [out, size] or [experts, out, size], e4m3
    scale: torch.Tensor  # [out], or [ceil(out / 128), ceil(size / 128)] for blocks, after [experts] if there are; float32

    @staticmethod
    def of(weight: torch.Tensor, blocks: bool = False) -> "Fp8Weight":
        """A matrix, or a stack of them, quantised with a scale per output channel, or per block."""
        if weight.ndim == 2:
            return Fp8Weight(*(quantise_blocks if blocks else quantise_channels)(weight))
        each = [Fp8Weight.of(matrix, blocks) for matrix in weight]
        return Fp8Weight(torch.stack([one.values for one in each]), torch.stack([one.scale for one in each]))

    @property
    def has_blocks(self) -> bool:
        return self.scale.ndim == self.values.ndim

    def to(self, device: torch.device) -> "Fp8Weight":
        return Fp8Weight(self.values.to(device), self.scale.to(device))

    def contiguous(self) -> "Fp8Weight":
        return Fp8Weight(self.values.contiguous(), self.scale.contiguous())

    def dequantise(self) -> torch.Tensor:
        """As `values`, float32"""
        if not self.has_blocks:
            return self.values.float() * self.scale[..., None]
        if self.values.ndim == 2:
            return dequantise_blocks(self.values, self.scale)
        return torch.stack([dequantise_blocks(values, scale) for values, scale in zip(self.values, self.scale, strict=True)])
