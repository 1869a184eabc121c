"""A family from elsewhere: a router sends each token to some of many small MLPs. All else is Qwen3-VL's."""

import dataclasses

from sightline.models.families.qwen3_vl import FAMILY as QWEN3
from sightline.models.families.qwen3_vl.weights import weights
from sightline.models.fields import Fields
from sightline.models.weight_table import WeightTable
from sightline.models.weights.layers import linear, stacked_experts
from sightline.spec import LayerSpec, ModelSpec


@dataclasses.dataclass(frozen=True)
class ExpertsSpec:
    experts: int
    chosen: int  # of them, for each token
    intermediate_size: int
    hidden_size: int


def read_spec(config: Fields) -> ModelSpec:
    """The first layer stays dense."""
    count, chosen, intermediate = (config.integer(name) for name in ("experts", "experts_chosen", "experts_intermediate_size"))
    spec = QWEN3.read_spec(config)
    mlp = ExpertsSpec(count, chosen, intermediate, spec.text.hidden_size)
    layers = tuple(LayerSpec(layer.mixer, mlp if index else layer.mlp) for index, layer in enumerate(spec.text.layers))
    return dataclasses.replace(spec, family="experts-vl", text=dataclasses.replace(spec.text, layers=layers))


def expert_weights(table: WeightTable, ours: str, layer: str, spec: ExpertsSpec, hidden: int) -> None:
    linear(table, f"{ours}.router", f"{layer}.mlp.gate", spec.experts, hidden, False)
    table[f"{ours}.gate_up"], table[f"{ours}.down"] = stacked_experts(
        f"{layer}.mlp.experts",
        count=spec.experts,
        hidden=hidden,
        intermediate=spec.intermediate_size,
        layout="per_expert",
    )


def modules() -> dict[type, object]:
    from .mlp import Experts

    return {ExpertsSpec: lambda spec, text: Experts(spec)}


_TINY = QWEN3.sizes["tiny"]
FAMILY = dataclasses.replace(
    QWEN3,
    name="experts-vl",
    model_type="experts_vl",
    architecture="ExpertsForConditionalGeneration",
    read_spec=read_spec,
    weight_table=lambda spec: weights(spec, {ExpertsSpec: expert_weights}),
    modules=modules,
    sizes={
        "tiny": {
            **_TINY,
            "experts": 6,
            "experts_chosen": 2,
            "experts_intermediate_size": 48,
            "vision_config": {**_TINY["vision_config"], "deepstack_visual_indexes": []},
        }
    },
)
