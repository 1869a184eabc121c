"""Weights of the shared tower: what several families store alike."""

from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Stored, flatten
from sightline.models.weights.layers import gated_mlp, linear, norm
from sightline.spec import PatchTowerSpec


def patch_embedding(table: WeightTable, vision: PatchTowerSpec) -> None:
    """The Conv3d weight [out, channels, time, rows, columns] flattened to a linear map."""
    spec, size = vision.patch_embed, vision.block.hidden_size
    kernel = (spec.in_channels, spec.temporal_patch_size, spec.patch_size, spec.patch_size)
    table["vision.patch_embed.weight"] = flatten(Stored("visual.patch_embed.proj.weight", (size, *kernel)), 1)
    if spec.bias:
        table["vision.patch_embed.bias"] = Stored("visual.patch_embed.proj.bias", (size,))


def tower_attention(table: WeightTable, vision: PatchTowerSpec, norm_bias: bool) -> None:
    """Norms and attention of the tower's blocks: the same names in every family."""
    block = vision.block
    size = block.hidden_size
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}", f"visual.blocks.{index}"
        for name in ("norm1", "norm2"):
            norm(table, f"{ours}.{name}", f"{theirs}.{name}", size, norm_bias)
        linear(table, f"{ours}.qkv", f"{theirs}.attn.qkv", 3 * size, size, block.qkv_bias)
        linear(table, f"{ours}.proj", f"{theirs}.attn.proj", size, size, block.proj_bias)


def tower_gated_mlp(table: WeightTable, vision: PatchTowerSpec) -> None:
    block = vision.block
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}.mlp", f"visual.blocks.{index}.mlp"
        gated_mlp(table, ours, theirs, hidden=block.hidden_size, intermediate=block.intermediate_size, bias=block.mlp_bias)
