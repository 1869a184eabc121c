"""Which tensors of a checkpoint make which parameter."""

from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Stored, flatten
from sightline.models.weights.layers import decoder, linear, norm, usual_parts
from sightline.spec import ModelSpec

from .config import TileTowerSpec


def weights(spec: ModelSpec) -> WeightTable:
    vision = spec.vision
    assert isinstance(vision, TileTowerSpec)
    table, size, patch = WeightTable(), vision.hidden_size, vision.patch_size
    table["vision.patch_embed.weight"] = flatten(Stored("visual.patch_embed.weight", (size, 3, patch, patch)), 1)
    table["vision.patch_embed.bias"] = Stored("visual.patch_embed.bias", (size,))
    table["vision.positions"] = Stored("visual.position_embed.weight", (vision.side**2, size))
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}", f"visual.layers.{index}"
        norm(table, f"{ours}.norm1", f"{theirs}.norm1", size, True)
        norm(table, f"{ours}.norm2", f"{theirs}.norm2", size, True)
        linear(table, f"{ours}.qkv", f"{theirs}.attn.qkv", 3 * size, size, True)
        linear(table, f"{ours}.proj", f"{theirs}.attn.proj", size, size, True)
        linear(table, f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1", vision.intermediate_size, size, True)
        linear(table, f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2", size, vision.intermediate_size, True)
    joined, out = vision.joined_size, vision.out_hidden_size
    norm(table, "vision.norm", "visual.norm", joined, True)
    linear(table, "vision.fc1", "visual.projector.fc1", joined, joined, True)
    linear(table, "vision.fc2", "visual.projector.fc2", out, joined, True)
    table["vision.newline"] = Stored("visual.newline", (out,))
    table["vision.separator"] = Stored("visual.separator", (out,))
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, usual_parts())
    return table
