"""Which tensors of a checkpoint make which parameter."""

from collections.abc import Mapping

from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Stored
from sightline.models.weights.layers import PartWeights, decoder, linear, norm, usual_parts
from sightline.models.weights.tower import patch_embedding, tower_attention
from sightline.spec import ModelSpec, PatchTowerSpec


def weights(spec: ModelSpec, parts: Mapping[type, PartWeights] | None = None) -> WeightTable:
    """`parts`: of layers that are not all attention and a dense MLP, in families that share all else."""
    table = WeightTable()
    tower(table, spec.patch_tower)
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, {**usual_parts(), **(parts or {})})
    return table


def tower(table: WeightTable, vision: PatchTowerSpec) -> None:
    patch_embedding(table, vision)
    grid = vision.position_grid
    assert grid is not None
    table["vision.position_table"] = Stored("visual.pos_embed.weight", (grid.side**2, vision.block.hidden_size))
    tower_attention(table, vision, norm_bias=True)
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}.mlp", f"visual.blocks.{index}.mlp"
        linear(table, f"{ours}.fc1", f"{theirs}.linear_fc1", vision.block.intermediate_size, vision.block.hidden_size, True)
        linear(table, f"{ours}.fc2", f"{theirs}.linear_fc2", vision.block.hidden_size, vision.block.intermediate_size, True)
    joined = vision.joined_size
    mergers = [("vision.merger", "visual.merger", vision.block.hidden_size)]
    mergers += [
        (f"vision.deepstack_mergers.{level}", f"visual.deepstack_merger_list.{level}", joined)
        for level in range(len(vision.deepstack_layers))
    ]
    for ours, theirs, normed in mergers:
        norm(table, f"{ours}.norm", f"{theirs}.norm", normed, True)
        linear(table, f"{ours}.fc1", f"{theirs}.linear_fc1", joined, joined, True)
        linear(table, f"{ours}.fc2", f"{theirs}.linear_fc2", vision.out_hidden_size, joined, True)
