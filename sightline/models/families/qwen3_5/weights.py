"""Which tensors of a checkpoint make which parameter."""

from collections.abc import Mapping

from sightline.models.families.qwen3_5.spec import DeltaNetSpec
from sightline.models.families.qwen3_vl.weights import tower
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Cast, Stored, flatten
from sightline.models.weights.layers import PartWeights, decoder, linear, merged_linear, usual_parts
from sightline.spec import ModelSpec


def weights(spec: ModelSpec, parts: Mapping[type, PartWeights] | None = None) -> WeightTable:
    """`parts`: of MLPs that are not dense."""
    table = WeightTable(ignored=("mtp.*",))  # drafts of the next tokens
    tower(table, spec.patch_tower)
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, {**usual_parts(), DeltaNetSpec: delta_net, **(parts or {})})
    return table


def delta_net(table: WeightTable, ours: str, layer: str, spec: DeltaNetSpec, hidden: int) -> None:
    theirs = f"{layer}.linear_attn"
    parts = ((f"{theirs}.in_proj_qkv", spec.channels), (f"{theirs}.in_proj_z", spec.values))
    merged_linear(table, f"{ours}.qkv_gate", parts, hidden, False)
    rates = tuple((f"{theirs}.in_proj_{name}", spec.value_heads) for name in "ba")
    merged_linear(table, f"{ours}.rates", rates, hidden, False)
    table[f"{ours}.conv"] = flatten(Stored(f"{theirs}.conv1d.weight", (spec.channels, 1, spec.conv_width)), 1)
    # The rates decide how long a state lasts: float32, in whatever the checkpoint stores them.
    table[f"{ours}.a_log"] = Cast("float32", Stored(f"{theirs}.A_log", (spec.value_heads,), mean=-3.0))
    table[f"{ours}.dt_bias"] = Cast("float32", Stored(f"{theirs}.dt_bias", (spec.value_heads,)))
    table[f"{ours}.norm"] = Cast("float32", Stored(f"{theirs}.norm.weight", (spec.value_dim,)))
    linear(table, f"{ours}.out", f"{theirs}.out_proj", hidden, spec.values, False)
