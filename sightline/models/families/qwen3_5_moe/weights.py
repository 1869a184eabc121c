"""Which tensors of a checkpoint make which parameter."""

from sightline.models.families.qwen3_5.weights import weights as dense_weights
from sightline.models.weight_table import WeightTable
from sightline.models.weights.layers import experts
from sightline.spec import ExpertLayout, ExpertsSpec, ModelSpec

# Published checkpoints have stacked matrices in bfloat16, and one by one in 8-bit floats, as transformers saves them.
LAYOUTS: tuple[ExpertLayout, ...] = ("fused", "per_expert")


def weights(spec: ModelSpec) -> WeightTable:
    layout: ExpertLayout = "per_expert" if spec.expert_layout == "per_expert" else "fused"

    def moe(table: WeightTable, ours: str, layer: str, part: ExpertsSpec, hidden: int) -> None:
        experts(table, ours, f"{layer}.mlp", part, hidden, layout, shared="shared_expert")

    return dense_weights(spec, {ExpertsSpec: moe})
