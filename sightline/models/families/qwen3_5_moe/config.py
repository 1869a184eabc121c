"""config.json as a spec: the dense family's, with experts in every layer."""

from sightline.errors import ConfigError
from sightline.models.families.qwen3_5.config import read_as
from sightline.models.fields import Fields
from sightline.models.hf_config import check_experts
from sightline.spec import ExpertsSpec, ModelSpec


def _read_experts(text: Fields) -> ExpertsSpec:
    text.must_be("norm_topk_prob", True)
    text.ignore("router_aux_loss_coef", "output_router_logits")  # of training
    experts = ExpertsSpec(
        count=text.integer("num_experts", 256),
        chosen=text.integer("num_experts_per_tok", 8),
        intermediate_size=text.integer("moe_intermediate_size", 512),
        shared_expert="gated",
    )
    shared = text.integer("shared_expert_intermediate_size", 512)
    if shared != experts.intermediate_size:
        raise ConfigError(
            f"{text.name}: 'shared_expert_intermediate_size' is {shared}, but must be that of the other experts, "
            f"{experts.intermediate_size} ('moe_intermediate_size')."
        )
    return check_experts(text, experts)


def read_spec(config: Fields) -> ModelSpec:
    return read_as("qwen3.5-moe", config, _read_experts)
