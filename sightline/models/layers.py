"""Modules that hold a parameter or two and call one op. Nothing here knows a model family."""

import torch
from torch import nn

from sightline.ops.activations import gelu_tanh, silu_mul
from sightline.ops.linear import linear_gelu_tanh
from sightline.ops.norms import add_layer_norm, add_rms_norm, add_rms_norm_rows, layer_norm, rms_norm
from sightline.spec import Norm


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)

    def after_add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(residual + x), residual + x)"""
        return add_rms_norm(x, residual, self.weight, self.eps)

    def after_add_of_rows(
        self, x: torch.Tensor, residual: torch.Tensor, rows: torch.Tensor, index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same with rows[index] added too, where index >= 0."""
        return add_rms_norm_rows(x, residual, self.weight, self.eps, rows, index)


class LayerNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def after_add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(residual + x), residual + x)"""
        return add_layer_norm(x, residual, self.weight, self.bias, self.eps)


def make_norm(kind: Norm, size: int, eps: float) -> RMSNorm | LayerNorm:
    return RMSNorm(size, eps) if kind == "rms" else LayerNorm(size, eps)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up in one matrix."""

    def __init__(self, size: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.gate_up = nn.Linear(size, 2 * intermediate, bias=bias)
        self.down = nn.Linear(intermediate, size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(silu_mul(self.gate_up(x)))
        return out


class GeluMLP(nn.Module):
    """fc2(gelu_tanh(fc1(x)))"""

    def __init__(self, size: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.fc1: nn.Module = nn.Linear(size, intermediate, bias=bias)
        self.fc2 = nn.Linear(intermediate, size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.fc1, nn.Linear):
            inner = linear_gelu_tanh(x, self.fc1.weight, self.fc1.bias)
        else:  # in 8-bit floats
            inner = gelu_tanh(self.fc1(x))
        out: torch.Tensor = self.fc2(inner)
        return out
