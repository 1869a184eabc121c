"""Which tensors of a checkpoint make which parameter."""

from sightline.models.families.step3_vl.config import ConvMergerSpec
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Concat, Part, Permute, Reshape, Stored, Weight, flatten, transpose
from sightline.models.weights.layers import decoder, linear, norm, usual_parts
from sightline.spec import ModelSpec, PatchTowerSpec

_TOWER = "vision_model"


def weights(spec: ModelSpec) -> WeightTable:
    table = WeightTable()
    _tower(table, spec.patch_tower)
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, usual_parts())
    return table


def _tower(table: WeightTable, vision: PatchTowerSpec) -> None:
    size, inner, patch, grid = (
        vision.block.hidden_size,
        vision.block.intermediate_size,
        vision.patch_embed,
        vision.position_grid,
    )
    assert grid is not None and isinstance(vision.merger, ConvMergerSpec)
    kernel = (patch.in_channels, patch.patch_size, patch.patch_size)
    table["vision.patch_embed.weight"] = flatten(Stored(f"{_TOWER}.conv1.weight", (size, *kernel)), 1)
    table["vision.position_table"] = Stored(f"{_TOWER}.positional_embedding", (grid.side**2, size))
    norm(table, "vision.pre_norm", f"{_TOWER}.ln_pre", size, True)
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}", f"{_TOWER}.transformer.resblocks.{index}"
        for number in (1, 2):
            norm(table, f"{ours}.norm{number}", f"{theirs}.ln_{number}", size, True)
            table[f"{ours}.scale{number}"] = Stored(f"{theirs}.ls_{number}.gamma", (size,))
        table[f"{ours}.qkv.weight"] = _qkv(Stored(f"{theirs}.attn.in_proj_weight", (3 * size, size)), vision)
        table[f"{ours}.qkv.bias"] = _qkv(Stored(f"{theirs}.attn.in_proj_bias", (3 * size,)), vision)
        linear(table, f"{ours}.proj", f"{theirs}.attn.out_proj", size, size, True)
        linear(table, f"{ours}.mlp.fc1", f"{theirs}.mlp.c_fc", inner, size, True)
        linear(table, f"{ours}.mlp.fc2", f"{theirs}.mlp.c_proj", size, inner, True)
    _convolution(table, "vision.merger.downsample1", f"{_TOWER}.vit_downsampler1", size)
    _convolution(table, "vision.merger.downsample2", f"{_TOWER}.vit_downsampler2", 2 * size)
    linear(table, "vision.merger.projector", "vit_large_projector", vision.out_hidden_size, 4 * size, vision.merger.bias)


def _qkv(stored: Stored, vision: PatchTowerSpec) -> Weight:
    """Of queries and keys, the first numbers of a head's pairs, then the second ones; stored pairs are adjacent."""
    heads, head_dim, rest = vision.block.num_heads, vision.block.head_dim, stored.shape[1:]
    rotated = 2 * heads * head_dim
    pairs = Reshape((2 * heads, head_dim // 2, 2, *rest), Part(0, 0, rotated, stored))
    return Concat(0, (Reshape((rotated, *rest), transpose(pairs, 1, 2)), Part(0, rotated, heads * head_dim, stored)))


def _convolution(table: WeightTable, ours: str, theirs: str, size: int) -> None:
    """[2 * size, size, rows, columns] to [2 * size, rows * columns * size], the order in which the merger joins neighbours."""
    table[f"{ours}.weight"] = flatten(Permute((0, 2, 3, 1), Stored(f"{theirs}.weight", (2 * size, size, 3, 3))), 1)
    table[f"{ours}.bias"] = Stored(f"{theirs}.bias", (2 * size,))
