"""Modules that hold a parameter or two and call one op. Nothing here knows a model family."""

import torch
from torch import nn

from sightline.ops.activations import gelu_tanh, silu_mul
from sightline.ops.linear import add_linear, linear, linear_gelu_tanh, linear_silu_mul
from sightline.ops.norms import add_rms_norm, add_rms_norm_rows, layer_norm, rms_norm
from sightline.spec import Norm


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.shift: torch.Tensor | None = None  # [size] float32, added to what is normalised

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps, self.shift)

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
        self.shift: torch.Tensor | None = None  # [size] float32, added to what is normalised

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps, self.shift)


def make_norm(kind: Norm, size: int, eps: float) -> RMSNorm | LayerNorm:
    return RMSNorm(size, eps) if kind == "rms" else LayerNorm(size, eps)


def add_product(total: torch.Tensor, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """total + module(x), in the memory of `total`; by the op where it is a plain linear map."""
    if isinstance(module, nn.Linear):
        return add_linear(total, x, module.weight, module.bias)
    return total.add_(module(x))  # in 8-bit floats


def apply_linear(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """module(x), by the op where it is a plain linear map."""
    if isinstance(module, nn.Linear):
        return linear(x, module.weight, module.bias)
    out: torch.Tensor = module(x)  # in 8-bit floats
    return out


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up in one matrix."""

    def __init__(self, size: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.gate_up: nn.Module = nn.Linear(size, 2 * intermediate, bias=bias)
        self.down = nn.Linear(intermediate, size, bias=bias)

    @property
    def last(self) -> nn.Linear:
        return self.down

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """What the last linear map takes."""
        if isinstance(self.gate_up, nn.Linear):
            return linear_silu_mul(x, self.gate_up.weight, self.gate_up.bias)
        return silu_mul(self.gate_up(x))  # in 8-bit floats

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return apply_linear(self.down, self.inner(x))


class GeluMLP(nn.Module):
    """fc2(gelu_tanh(fc1(x)))"""

    def __init__(self, size: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.fc1: nn.Module = nn.Linear(size, intermediate, bias=bias)
        self.fc2 = nn.Linear(intermediate, size, bias=bias)

    @property
    def last(self) -> nn.Linear:
        return self.fc2

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """What the last linear map takes."""
        if isinstance(self.fc1, nn.Linear):
            return linear_gelu_tanh(x, self.fc1.weight, self.fc1.bias)
        return gelu_tanh(self.fc1(x))  # in 8-bit floats

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.inner(x))
        return out
