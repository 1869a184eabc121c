"""config.json as a spec."""

from sightline.models import hf_config
from sightline.models.families.glm4v.config import finish_spec
from sightline.models.fields import Fields
from sightline.spec import ExpertsSpec, MediaTokens, ModelSpec


def _read_experts(fields: Fields) -> ExpertsSpec:
    fields.must_be("norm_topk_prob", True)
    fields.must_be("n_group", 1)  # experts are not chosen by groups
    fields.must_be("topk_group", 1)
    fields.must_be("n_shared_experts", 1)
    fields.ignore("router_aux_loss_coef", "num_nextn_predict_layers")  # of training; layers that are not loaded
    experts = ExpertsSpec(
        count=fields.integer("n_routed_experts", 128),
        chosen=fields.integer("num_experts_per_tok", 8),
        intermediate_size=fields.integer("moe_intermediate_size", 1408),
        scores="sigmoid",
        scale=fields.number("routed_scaling_factor", 1.0),
        shared_expert="plain",
    )
    return hf_config.check_experts(fields, experts)


def read_spec(config: Fields, family: str) -> ModelSpec:
    """Unlike GLM-4.1V's the decoder has two norms a layer, and halves of a head turn together."""
    fields = hf_config.split_text(config)
    fields.must_be("use_qk_norm", False)
    fields.must_be("qk_layernorm", False)
    text = hf_config.read_text(
        fields,
        rope_theta=1e4,
        norm_eps=1e-5,
        qk_norm=False,
        qkv_bias=True,
        sandwich_norm=False,
        tie=hf_config.read_tie(config, fields),
        layout="blocked",
        pairing="halves",
        partial_rotary=0.5,
    )
    dense = fields.token("first_k_dense_replace", 1)  # layers, maybe none
    text = hf_config.with_experts(text, _read_experts(fields), range(dense, text.num_layers))
    return finish_spec(family, config, fields, text, MediaTokens(151363, 151364))
