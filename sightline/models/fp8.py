"""Linear layers whose weights are 8-bit floats, and such weights by themselves."""

from dataclasses import dataclass

import torch
from torch import nn

from sightline.ops.fp8 import dequantise_blocks, fp8_block_linear, fp8_linear, quantise_blocks, quantise_channels


@dataclass(frozen=True)
class Fp8Weight:
    """A matrix in 8-bit floats with its scales."""

    values: torch.Tensor  # [out, size], e4m3
    scale: torch.Tensor  # [out], or [ceil(out / 128), ceil(size / 128)] for blocks; float32

    @staticmethod
    def of(weight: torch.Tensor, blocks: bool = False) -> "Fp8Weight":
        """A matrix quantised with a scale per output channel, or per block."""
        return Fp8Weight(*(quantise_blocks if blocks else quantise_channels)(weight))

    @property
    def has_blocks(self) -> bool:
        return self.scale.ndim == 2

    def to(self, device: torch.device) -> "Fp8Weight":
        return Fp8Weight(self.values.to(device), self.scale.to(device))

    def dequantise(self) -> torch.Tensor:
        """[out, size], float32"""
        if self.has_blocks:
            return dequantise_blocks(self.values, self.scale)
        return self.values.float() * self.scale[:, None]


class Fp8Linear(nn.Module):
    """Stands where an nn.Linear stood and is called as it was; quantises what it is given."""

    def __init__(self, weight: Fp8Weight, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.values, requires_grad=False)
        self.weight_scale = nn.Parameter(weight.scale, requires_grad=False)
        self.bias = bias
        self.has_blocks = weight.has_blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = fp8_block_linear if self.has_blocks else fp8_linear
        return product(x, self.weight, self.weight_scale, self.bias)
