"""Which tensors of a checkpoint make which parameter."""

from sightline.models.families.qwen3_vl.weights import weights as dense_weights
from sightline.models.weight_table import WeightTable
from sightline.models.weights.layers import experts
from sightline.spec import ExpertLayout, ExpertsSpec, ModelSpec

# Published checkpoints, those in 8-bit floats too, have matrices that are used as x @ w.
LAYOUTS: tuple[ExpertLayout, ...] = ("fused_transposed", "fused", "per_expert")


def weights(spec: ModelSpec) -> WeightTable:
    layout = spec.expert_layout or LAYOUTS[0]

    def moe(table: WeightTable, ours: str, layer: str, part: ExpertsSpec, hidden: int) -> None:
        experts(table, ours, f"{layer}.mlp", part, hidden, layout)

    return dense_weights(spec, {ExpertsSpec: moe})
