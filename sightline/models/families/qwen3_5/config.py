"""config.json as a spec."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from sightline.errors import ConfigError
from sightline.models import hf_config
from sightline.models.families.qwen3_5.spec import DeltaNetSpec
from sightline.models.families.qwen3_vl.config import read_tower
from sightline.models.fields import Fields
from sightline.spec import GatedMLPSpec, LayerSpec, MediaTokens, MixerSpec, ModelSpec, TextSpec

_GATES: dict[str, Literal["silu", "sigmoid"]] = {"swish": "silu", "silu": "silu", "sigmoid": "sigmoid"}


def read_spec(config: Fields) -> ModelSpec:
    return read_as("qwen3.5", config, lambda text: GatedMLPSpec(text.integer("intermediate_size")))


def read_as(family: str, config: Fields, read_mlp: Callable[[Fields], object]) -> ModelSpec:
    """The spec of a family whose MLPs are what `read_mlp` makes of the text fields."""
    text_fields = hf_config.split_text(config)
    text = _read_text(text_fields, read_mlp(text_fields), hf_config.read_tie(config, text_fields))
    fields = config.section("vision_config")
    vision = read_tower(fields, deepstack=())
    if vision.deepstack_layers:
        raise ConfigError(f"{fields.name}: 'deepstack_visual_indexes' is {list(vision.deepstack_layers)}, but must be empty.")
    tokens = MediaTokens(config.token("image_token_id", 248056), config.token("video_token_id", 248057))
    config.ignore("vision_start_token_id", "vision_end_token_id")  # the tokenizer's names are what is used
    config.must_be("language_model_only", False)
    return hf_config.make_spec(family, (config, text_fields, fields), text, vision, tokens)


def _read_text(text: Fields, mlp: object, tie: bool) -> TextSpec:
    text.must_be("attn_output_gate", True)
    text.must_be("mamba_ssm_dtype", "float32")
    text.must_be("mlp_only_layers", [])
    # Layers that guess further tokens are not loaded.
    text.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    attention = dataclasses.replace(
        hf_config.read_attention(
            text, rope_theta=1e7, qk_norm=True, qkv_bias=False, layout="interleaved", pairing="halves", partial_rotary=0.25
        ),
        output_gate=True,
        zero_centred_norms=True,
    )
    eps = text.number("rms_norm_eps", 1e-6)
    mixers: dict[str, MixerSpec] = {"full_attention": attention, "linear_attention": _read_delta_net(text, eps)}
    return TextSpec(
        layers=tuple(LayerSpec(mixers[kind], mlp) for kind in _layer_types(text)),
        hidden_size=text.integer("hidden_size"),
        vocab_size=text.integer("vocab_size"),
        norm_eps=eps,
        sandwich_norm=False,
        tie_word_embeddings=tie,
        max_position=text.integer("max_position_embeddings"),
        zero_centred_norms=True,
    )


def _layer_types(text: Fields) -> list[str]:
    """What each layer mixes with; where no list says so, every so many layers attend."""
    count, interval = text.integer("num_hidden_layers"), text.integer("full_attention_interval", 4)
    kinds = ["linear_attention" if (index + 1) % interval else "full_attention" for index in range(count)]
    found = text.take("layer_types", kinds)
    if not isinstance(found, list) or len(found) != count or not set(found) <= set(kinds) | {"full_attention"}:
        raise ConfigError(f"{text.name}: 'layer_types' must name 'linear_attention' or 'full_attention' for {count} layers.")
    if "full_attention" not in found:
        raise ConfigError(f"{text.name}: 'layer_types' has no layer with 'full_attention'.")
    return list(found)


def _read_delta_net(text: Fields, eps: float) -> DeltaNetSpec:
    gate = text.take("output_gate_type", "swish")
    if gate not in _GATES:
        raise ConfigError(f"{text.name}: 'output_gate_type' is {gate!r}, but only {', '.join(_GATES)} are supported.")
    spec = DeltaNetSpec(
        key_heads=text.integer("linear_num_key_heads", 16),
        value_heads=text.integer("linear_num_value_heads", 32),
        key_dim=text.integer("linear_key_head_dim", 128),
        value_dim=text.integer("linear_value_head_dim", 128),
        conv_width=text.integer("linear_conv_kernel_dim", 4),
        norm_eps=eps,
        output_gate=_GATES[gate],
    )
    if spec.value_heads % spec.key_heads:
        raise ConfigError(f"{text.name}: {spec.value_heads} value heads cannot share {spec.key_heads} key heads evenly.")
    if spec.conv_width < 2:
        raise ConfigError(f"{text.name}: 'linear_conv_kernel_dim' is {spec.conv_width}, but must be at least 2.")
    return spec
