"""config.json as a spec."""

import dataclasses

from sightline.errors import ConfigError
from sightline.models import hf_config
from sightline.models.families.deepseek_vl2.spec import LatentAttentionSpec, SiglipTowerSpec
from sightline.models.fields import Fields
from sightline.spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedMLPSpec,
    LayerSpec,
    MediaTokens,
    MixerSpec,
    ModelSpec,
    TextRopeSpec,
    TextSpec,
)

LATENT_NORM_EPS = 1e-6  # of the norm of latents, whatever rms_norm_eps says


def read_spec(config: Fields) -> ModelSpec:
    text_fields, vision_fields = config.section("language_config"), config.section("vision_config")
    projector = config.section("projector_config")
    config.must_be("tile_tag", "2D")
    config.must_be("global_view_pos", "head")
    config.ignore("candidate_resolutions")  # those of the processor's file count
    text = _read_text(config, text_fields)
    vision = _read_tower(vision_fields, projector)
    projector.done()
    tokens = MediaTokens(config.token("image_token_id"), None)
    return hf_config.make_spec("deepseek-vl2", (config, text_fields, vision_fields), text, vision, tokens)


def _read_tower(fields: Fields, projector: Fields) -> SiglipTowerSpec:
    name = fields.take("model_name", "siglip")
    if not str(name).startswith("siglip"):
        raise ConfigError(f"{fields.name}: 'model_name' is {name!r}, but only SigLIP towers are supported.")
    fields.must_be("global_pool", "map")  # a head that is there and not used
    fields.must_be("ignore_head", True)
    fields.must_be("class_token", False)
    fields.must_be("num_classes", 0)
    fields.ignore("use_checkpoint", "weight_init", "deterministic", "num_recomputing_layers")
    projector.must_be("projector_type", "downsample_mlp_gelu")
    projector.must_be("depth", 2)
    projector.must_be("token_pooling", False)
    width, out = fields.integer("width", 1024), projector.integer("n_embed", 2048)
    if (given := projector.integer("input_dim", 1152)) != width:
        raise ConfigError(f"{projector.name}: 'input_dim' is {given}, but the tower's 'width' is {width}.")
    spec = SiglipTowerSpec(
        out_hidden_size=out,
        depth=fields.integer("layers", 24),
        hidden_size=width,
        num_heads=fields.integer("heads", 16),
        intermediate_size=int(width * fields.number("mlp_ratio", 4)),
        patch_size=fields.integer("patch_size", 16),
        tile_size=fields.integer("image_size", 384),
        join=projector.integer("downsample_ratio", 2),
        projector_size=out * projector.integer("mlp_ratio", 1),
    )
    if width % spec.num_heads or not spec.side:
        raise ConfigError(f"{fields.name}: 'width' {width} must be a multiple of 'heads', and a tile hold a patch.")
    return spec


def _read_text(config: Fields, fields: Fields) -> TextSpec:
    hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers", 30)
    fields.must_be("hidden_act", "silu")
    fields.must_be("attention_bias", False)
    fields.must_be("mlp_bias", False)
    fields.must_be("lm_head", True)
    fields.must_be("rm_head", False)
    fields.must_be("pretraining_tp", 1)
    fields.ignore("auto_map")  # of a config inside: nothing asks for its code
    if "rope_scaling" in fields:
        raise ConfigError(f"{fields.name} has 'rope_scaling', but only positions as they are can be computed.")
    mixer = _read_mixer(fields, hidden)
    dense = GatedMLPSpec(fields.integer("intermediate_size", 11008))
    experts = _read_experts(fields)
    first = fields.token("first_k_dense_replace", 0)  # layers, maybe none
    every = [LayerSpec(mixer, dense if experts is None or index < first else experts) for index in range(layers)]
    return TextSpec(
        layers=tuple(every),
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size", 102400),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        sandwich_norm=False,
        tie_word_embeddings=hf_config.read_tie(config, fields),
        max_position=fields.integer("max_position_embeddings", 2048),
    )


def _read_mixer(fields: Fields, hidden: int) -> MixerSpec:
    """Attention with compressed keys and values, or without."""
    heads, theta = fields.integer("num_attention_heads", 32), fields.number("rope_theta", 1e4)
    kv_heads = fields.integer("num_key_value_heads", heads)
    if not fields.flag("use_mla", True):
        fields.must_be("q_lora_rank", 0)
        fields.ignore("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        if hidden % heads or heads % kv_heads:
            raise ConfigError(
                f"{fields.name}: 'hidden_size' {hidden} must be a multiple of {heads} attention heads, and these must share "
                f"{kv_heads} key/value heads evenly."
            )
        size = hidden // heads
        rope = TextRopeSpec(theta, size, (size // 2, 0, 0), "blocked", "halves")
        return AttentionSpec(heads, kv_heads, size, qkv_bias=False, qk_norm=False, rope=rope)
    fields.must_be("num_key_value_heads", heads)
    if fields.take("q_lora_rank", None) is not None:
        raise ConfigError(f"{fields.name} has a 'q_lora_rank', but only queries that are not compressed can be computed.")
    rotated = fields.integer("qk_rope_head_dim", 64)
    return LatentAttentionSpec(
        num_heads=heads,
        nope_dim=fields.integer("qk_nope_head_dim", 128),
        value_dim=fields.integer("v_head_dim", 128),
        rank=fields.integer("kv_lora_rank", 512),
        rope=TextRopeSpec(theta, rotated, (rotated // 2, 0, 0), "blocked", "adjacent"),
        norm_eps=LATENT_NORM_EPS,
    )


def _read_experts(fields: Fields) -> ExpertsSpec | None:
    """Chosen by a softmax, or by sigmoids with a bias."""
    count = fields.take("n_routed_experts", None)
    fields.must_be("moe_layer_freq", 1)
    fields.must_be("ep_size", 1)
    fields.ignore("aux_loss_alpha", "seq_aux")  # of training
    scores = fields.take("scoring_func", "softmax")
    methods = {"softmax": ("greedy", "group_limited_greedy"), "sigmoid": ("noaux_tc",)}.get(scores)
    if methods is None:
        raise ConfigError(f"{fields.name}: 'scoring_func' is {scores!r}, but only 'softmax' or 'sigmoid' is supported.")
    if (method := fields.take("topk_method", "greedy")) not in methods:
        wanted = " or ".join(map(repr, methods))
        raise ConfigError(f"{fields.name}: 'topk_method' is {method!r}, but with {scores} only {wanted} is supported.")
    groups = fields.integer("n_group", 1), fields.integer("topk_group", 1)
    normalised, scale = fields.flag("norm_topk_prob", False), fields.number("routed_scaling_factor", 1.0)
    chosen, size = fields.take("num_experts_per_tok", None), fields.integer("moe_intermediate_size", 1407)
    shared = fields.take("n_shared_experts", None)
    if count is None:
        return None
    experts = ExpertsSpec(
        count=fields.integer("n_routed_experts"),
        chosen=fields.integer("num_experts_per_tok"),
        intermediate_size=size,
        scores=scores,
        scale=scale,
        # One expert is chosen as it is: only several are weighed against each other.
        normalised=normalised and chosen > 1,
        float32_softmax=scores == "softmax",
        groups=groups if method != "greedy" and groups[0] > 1 else None,
    )
    if shared:
        experts = dataclasses.replace(experts, shared_expert="plain", shared_count=fields.integer("n_shared_experts"))
    return hf_config.check_experts(fields, experts)
