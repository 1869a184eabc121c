"""Which tensors of a checkpoint make which parameter."""

from sightline.models.families.glm4v.weights import tower_weights
from sightline.models.weight_table import WeightTable
from sightline.models.weights.layers import decoder, experts, usual_parts
from sightline.spec import ExpertLayout, ExpertsSpec, ModelSpec

LAYOUTS: tuple[ExpertLayout, ...] = ("per_expert", "fused")


def weights(spec: ModelSpec) -> WeightTable:
    layout = spec.expert_layout or LAYOUTS[0]

    def moe(table: WeightTable, ours: str, layer: str, part: ExpertsSpec, hidden: int) -> None:
        experts(table, ours, f"{layer}.mlp", part, hidden, layout, shared="shared_experts")

    # A layer behind the last is one that drafts tokens.
    table = WeightTable(ignored=(f"text.layers.{spec.text.num_layers}.*",))
    tower_weights(table, spec.patch_tower)
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, {**usual_parts(), ExpertsSpec: moe})
    return table
