"""Modules that hold a parameter or two and call one op. Nothing here knows a model family."""

import torch
from torch import nn

from sightline.models.linear import Linear
from sightline.ops.activations import quick_gelu
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


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up in one matrix."""

    graph_safe = True

    def __init__(self, size: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.gate_up = Linear(size, 2 * intermediate, bias, "column")
        self.down = Linear(intermediate, size, bias, "row")

    @property
    def last(self) -> Linear:
        return self.down

    def forward(self, x: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self.down(self.gate_up.silu_mul(x, gates), gates)
        return out

    def add_to(self, residual: torch.Tensor, x: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """residual + self(x), in the memory of `residual`."""
        return self.down.add_to(residual, self.gate_up.silu_mul(x, gates), gates)


class GeluMLP(nn.Module):
    """fc2(gelu_tanh(fc1(x)))"""

    def __init__(self, size: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.fc1 = Linear(size, intermediate, bias, "column")
        self.fc2 = Linear(intermediate, size, bias, "row")

    @property
    def last(self) -> Linear:
        return self.fc2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.fc1.gelu_tanh(x))
        return out

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + self(x), in the memory of `residual`."""
        return self.fc2.add_to(residual, self.fc1.gelu_tanh(x))


class QuickGeluMLP(GeluMLP):
    """fc2(quick_gelu(fc1(x)))"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(quick_gelu(self.fc1(x)))
        return out

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.fc2.add_to(residual, quick_gelu(self.fc1(x)))
