"""GLM's tower: the shared one with a convolutional merger."""

import torch

from sightline.models.families.glm4v.config import ConvGatedMergerSpec
from sightline.models.layers import LayerNorm, RMSNorm
from sightline.models.linear import Linear
from sightline.models.patch_tower import Merger, PatchTower
from sightline.ops.activations import gelu
from sightline.spec import ModelSpec, PatchTowerSpec


class ConvGatedMerger(Merger):
    """Norm, a 2x2 convolution on each merge block (a linear map here), projection, LayerNorm, GELU, gated MLP."""

    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        assert isinstance(spec.merger, ConvGatedMergerSpec)
        size, intermediate = spec.out_hidden_size, spec.merger.intermediate_size
        self.joined = spec.joined_size
        self.input_norm = RMSNorm(spec.block.hidden_size, spec.block.norm_eps)
        self.downsample = Linear(self.joined, size, True)  # columns ordered (row, column, channel), as patches join
        self.proj = Linear(size, size, False)
        self.norm = LayerNorm(size, 1e-5)  # torch's default; the checkpoint's config has no field for it
        self.gate_up = Linear(size, 2 * intermediate, False, "column")
        self.down = Linear(intermediate, size, False, "row")

    def shift_by(self, biases: torch.Tensor) -> None:
        self.input_norm.shift = biases

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = self.downsample(self.input_norm(hidden).view(-1, self.joined))
        rows = gelu(self.norm(self.proj(rows)))
        out: torch.Tensor = self.down(self.gate_up.silu_mul(rows))
        return out


def make_tower(spec: ModelSpec) -> PatchTower:
    return PatchTower(spec.patch_tower, ConvGatedMerger)
