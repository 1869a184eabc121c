"""Which tensors of a checkpoint make which parameter."""

from sightline.models.families.glm4v.config import ConvGatedMergerSpec
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Permute, Stored, flatten
from sightline.models.weights.layers import decoder, linear, merged_linear, norm, usual_parts
from sightline.models.weights.tower import patch_embedding, tower_attention, tower_gated_mlp
from sightline.spec import ModelSpec, PatchTowerSpec


def tower_weights(table: WeightTable, vision: PatchTowerSpec) -> None:
    size, out, merge = vision.block.hidden_size, vision.out_hidden_size, vision.merge_size
    patch_embedding(table, vision)
    grid = vision.position_grid
    assert grid is not None
    table["vision.position_table"] = Stored("visual.embeddings.position_embedding.weight", (grid.side**2, size))
    norm(table, "vision.patch_norm", "visual.post_conv_layernorm", size, False)
    tower_attention(table, vision, norm_bias=False)
    tower_gated_mlp(table, vision)
    norm(table, "vision.merger.input_norm", "visual.post_layernorm", size, False)
    # [out, channels, rows, columns] to [out, rows * columns * channels], the order in which patches are joined
    convolution = Stored("visual.downsample.weight", (out, size, merge, merge))
    table["vision.merger.downsample.weight"] = flatten(Permute((0, 2, 3, 1), convolution), 1)
    table["vision.merger.downsample.bias"] = Stored("visual.downsample.bias", (out,))
    linear(table, "vision.merger.proj", "visual.merger.proj", out, out, False)
    norm(table, "vision.merger.norm", "visual.merger.post_projection_norm", out, True)
    assert isinstance(vision.merger, ConvGatedMergerSpec)
    intermediate = vision.merger.intermediate_size
    halves = tuple((f"visual.merger.{name}_proj", intermediate) for name in ("gate", "up"))
    merged_linear(table, "vision.merger.gate_up", halves, out, False)
    linear(table, "vision.merger.down", "visual.merger.down_proj", out, intermediate, False)


def weights(spec: ModelSpec) -> WeightTable:
    table = WeightTable()
    tower_weights(table, spec.patch_tower)
    norms = {
        "input_norm": "input_layernorm",
        "attention_out_norm": "post_self_attn_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "mlp_out_norm": "post_mlp_layernorm",
    }
    decoder(table, spec.text, norms, usual_parts(fused_gate_up=True))
    return table
