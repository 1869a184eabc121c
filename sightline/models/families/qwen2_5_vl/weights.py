"""Which tensors of a checkpoint make which parameter."""

from sightline.models.weight_table import WeightTable
from sightline.models.weights.layers import decoder, linear, norm, usual_parts
from sightline.models.weights.tower import patch_embedding, tower_attention, tower_gated_mlp
from sightline.spec import ModelSpec


def weights(spec: ModelSpec) -> WeightTable:
    table = WeightTable()
    vision = spec.patch_tower
    patch_embedding(table, vision)
    tower_attention(table, vision, norm_bias=False)
    tower_gated_mlp(table, vision)
    joined = vision.joined_size
    norm(table, "vision.merger.norm", "visual.merger.ln_q", vision.block.hidden_size, False)
    linear(table, "vision.merger.fc1", "visual.merger.mlp.0", joined, joined, True)
    linear(table, "vision.merger.fc2", "visual.merger.mlp.2", vision.out_hidden_size, joined, True)
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, usual_parts())
    return table
