"""config.json as a spec: the dense family's, with experts in the decoder."""

import dataclasses

from sightline.models.families.qwen3_vl.config import read_spec as read_dense_spec
from sightline.models.fields import Fields
from sightline.models.hf_config import check_experts, with_experts
from sightline.spec import ExpertsSpec, ModelSpec, TextSpec


def _with_experts(fields: Fields, text: TextSpec) -> TextSpec:
    """In every `decoder_sparse_step`-th layer, but for those that `mlp_only_layers` names."""
    fields.must_be("norm_topk_prob", True)
    fields.ignore("router_aux_loss_coef", "output_router_logits")  # of training
    step, dense = fields.integer("decoder_sparse_step", 1), fields.integers("mlp_only_layers", ())
    experts = ExpertsSpec(
        count=fields.integer("num_experts", fields.integer("num_local_experts", 60)),  # transformers 5 saves the latter
        chosen=fields.integer("num_experts_per_tok", 4),
        intermediate_size=fields.integer("moe_intermediate_size", 1408),
    )
    sparse = set(range(step - 1, text.num_layers, step)) - set(dense)
    return with_experts(text, check_experts(fields, experts), sparse)


def read_spec(config: Fields) -> ModelSpec:
    """Whether the head is the embedding says the outer config alone: transformers 5 writes a true inside that nobody reads."""
    spec = read_dense_spec(config, "qwen3-vl-moe", _with_experts)
    tied = config.flag("tie_word_embeddings", False)
    return dataclasses.replace(spec, text=dataclasses.replace(spec.text, tie_word_embeddings=tied))
