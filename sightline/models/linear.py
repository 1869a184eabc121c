"""Linear layers: the one place that knows in which format a matrix is, and where its product is to be summed over ranks.

format      weight                    weight_scale
plain       [out, size], the model's  none
fp8         [out, size] e4m3          [out], or [ceil(out / 128), ceil(size / 128)] for blocks
            Those of experts are stacked: one more axis in front of each.

placement   replicated  every rank has the whole matrix
            column      a rank has some of the outputs; what follows works on those
            row         a rank has some of the inputs; its output is a part of a sum
"""

from typing import Literal

import torch
from torch import nn

from sightline.models.fp8 import Fp8Weight
from sightline.ops.activations import gelu_tanh, silu_mul
from sightline.ops.fp8 import SIDE_MULTIPLE, fp8_block_linear, fp8_linear, fp8_linear_silu_mul
from sightline.ops.linear import add_linear, linear, linear_gelu_tanh, linear_silu_mul
from sightline.ops.low_rank import add_low_rank
from sightline.ops.rotary import PatchRotary, rotated_projection, vision_rotary
from sightline.ops.workspace import Workspace
from sightline.parallel.group import Group

Placement = Literal["replicated", "column", "row"]


class WeightMatrix(nn.Module):
    """A matrix, or a stack of them, in one of the formats."""

    weight: nn.Parameter  # [out, size], or [count, out, size]
    weight_scale: nn.Parameter | None
    stays_plain = False  # never in 8-bit floats, such as a few rows of gates
    placement: Placement
    group: Group | None = None  # of a row-placed matrix that several ranks have parts of

    @property
    def is_fp8(self) -> bool:
        return self.weight_scale is not None

    @property
    def fits_fp8(self) -> bool:
        """Whether it may be in 8-bit floats, and its sides are such that GEMMs of them take it."""
        return not self.stays_plain and not any(side % SIDE_MULTIPLE for side in self.weight.shape[-2:])

    def set_fp8(self, weight: Fp8Weight) -> None:
        self.weight = nn.Parameter(weight.values, requires_grad=False)
        self.weight_scale = nn.Parameter(weight.scale, requires_grad=False)

    @property
    def has_blocks(self) -> bool:
        return self.weight_scale is not None and self.weight_scale.ndim == self.weight.ndim


class StackedLinear(WeightMatrix):
    """The matrices of several experts; `ops/experts.py` multiplies with them."""

    def __init__(self, count: int, size: int, out: int, placement: Placement) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, out, size))
        self.register_parameter("weight_scale", None)
        self.placement = placement


class LowRankPair(nn.Module):
    """What the adapters of a matrix add to its product (models/adapters.py); plain in every format of the matrix."""

    def __init__(self, size: int, out: int, ranks: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(ranks, size))
        self.up = nn.Parameter(torch.empty(out, ranks))

    def add_to(self, out: torch.Tensor, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """In the memory of `out`. gates [tokens, ranks]"""
        return add_low_rank(out, x, self.down, self.up, gates)


class Linear(WeightMatrix):
    """x W^T + b, alone and with what follows it. What has no fused kernel in the matrix's format takes the plain path.

    `gates` [tokens, ranks], where tokens use an adapter (models/adapters.py): what its pair adds is part of the product.
    """

    def __init__(self, size: int, out: int, bias: bool, placement: Placement = "replicated") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, size))
        self.bias: nn.Parameter | None
        self.register_parameter("bias", nn.Parameter(torch.empty(out)) if bias else None)
        self.register_parameter("weight_scale", None)
        self.placement = placement
        self.workspace: Workspace | None = None  # for small-M kernels; a tower has none, it runs beside the decoder
        self.low_rank: LowRankPair | None = None

    def add_low_rank_pair(self, ranks: int) -> None:
        self.low_rank = LowRankPair(self.weight.shape[1], self.weight.shape[0], ranks)

    def forward(self, x: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        if self.group is None:
            return self._product(x, self.bias, gates)
        out = self.group.all_reduce_(self._product(x, None, gates))  # the bias is added once, not by each rank
        return out if self.bias is None else out.add_(self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """residual + self(x), in the memory of `residual`."""
        if self.weight_scale is None and self.group is None:
            return self._adapted(add_linear(residual, x, self.weight, self.bias), x, gates)
        return residual.add_(self(x, gates))

    def silu_mul(self, x: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """The gated form: silu(gate) * up, where gate and up are the halves of the product."""
        if gates is not None:
            return silu_mul(self(x, gates))
        if self.weight_scale is None:
            return linear_silu_mul(x, self.weight, self.bias)
        return fp8_linear_silu_mul(x, self.weight, self.weight_scale, self.bias, self.workspace)

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight_scale is None:
            return linear_gelu_tanh(x, self.weight, self.bias)
        return gelu_tanh(self._matmul(x, self.bias))

    def rotated_heads(self, x: torch.Tensor, row_col: torch.Tensor, rotary: PatchRotary, heads: int) -> torch.Tensor:
        """A tower's packed queries, keys and values, the first two rotated. [patches, 3, heads, padded head dim]"""
        if self.weight_scale is None:
            return rotated_projection(x, self.weight, self.bias, row_col, rotary, heads)
        qkv: torch.Tensor = self._matmul(x, self.bias).unflatten(1, (3, heads, -1))
        vision_rotary(qkv, row_col, rotary)
        return qkv

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None, gates: torch.Tensor | None) -> torch.Tensor:
        return self._adapted(self._matmul(x, bias), x, gates)

    def _adapted(self, out: torch.Tensor, x: torch.Tensor, gates: torch.Tensor | None) -> torch.Tensor:
        if gates is None:
            return out
        assert self.low_rank is not None, "gates came to a matrix without adapters"
        return self.low_rank.add_to(out, x, gates)

    def _matmul(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.weight_scale is None:
            return linear(x, self.weight, bias, self.workspace)
        return (fp8_block_linear if self.has_blocks else fp8_linear)(x, self.weight, self.weight_scale, bias, self.workspace)


class TiedHead(nn.Module):
    """The embedding table as the matrix of the last product."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        self.workspace: Workspace | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.table.weight, None, self.workspace)


def sum_over_ranks(model: nn.Module, group: Group, within: str = "") -> None:
    """Row-placed matrices, of which ranks have parts, add up their products. `within`: how names of theirs begin."""
    for name, module in model.named_modules():
        if isinstance(module, WeightMatrix) and module.placement == "row" and name.startswith(within):
            module.group = group
