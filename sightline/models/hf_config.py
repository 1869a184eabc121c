"""Parts of a checkpoint's JSON that several families write the same way."""

import dataclasses
from collections.abc import Container
from typing import Literal, cast

from sightline.errors import ConfigError
from sightline.models.fields import Fields
from sightline.spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedMLPSpec,
    LayerSpec,
    MediaTokens,
    ModelSpec,
    PatchSpec,
    PatchTowerSpec,
    TextRopeSpec,
    TextSpec,
    VisionSpec,
)

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)

# Which axis of a position drives which frequency, as in TextRopeSpec; "plain": there is one axis, that of text.
RopeLayout = Literal["blocked", "interleaved", "plain"]


def split_text(config: Fields) -> Fields:
    """The language model's fields: text_config, or the outer object itself in older flat configs.

    Some checkpoints repeat text fields outside; a repetition with another value is a contradiction.
    """
    if "text_config" not in config:
        return config
    text = config.section("text_config")
    config.ignore_repeated(text)
    return text


def read_text(
    text: Fields, *, rope_theta: float, norm_eps: float, qk_norm: bool, qkv_bias: bool, sandwich_norm: bool, tie: bool,
    layout: RopeLayout, pairing: Literal["halves", "adjacent"], partial_rotary: float = 1.0,
) -> TextSpec:  # fmt: skip
    """The decoder's sizes. The keyword arguments are what the family fixes, and what it assumes where a field is absent."""
    layers = text.integer("num_hidden_layers")
    text.must_be("layer_types", ["full_attention"] * layers)
    attention = read_attention(
        text, rope_theta=rope_theta, qk_norm=qk_norm, qkv_bias=qkv_bias, layout=layout, pairing=pairing,
        partial_rotary=partial_rotary,
    )  # fmt: skip
    layer = LayerSpec(attention, GatedMLPSpec(text.integer("intermediate_size")))
    return TextSpec(
        layers=(layer,) * layers,
        hidden_size=text.integer("hidden_size"),
        vocab_size=text.integer("vocab_size"),
        norm_eps=text.number("rms_norm_eps", norm_eps),
        sandwich_norm=sandwich_norm,
        tie_word_embeddings=tie,
        max_position=text.integer("max_position_embeddings"),
    )


def read_attention(
    text: Fields, *, rope_theta: float, qk_norm: bool, qkv_bias: bool, layout: RopeLayout,
    pairing: Literal["halves", "adjacent"], partial_rotary: float = 1.0,
) -> AttentionSpec:  # fmt: skip
    """Attention of every layer that has it."""
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    kv_heads = text.integer("num_key_value_heads", heads)
    head_dim = text.integer("head_dim", hidden // heads)
    if heads % kv_heads:
        raise ConfigError(f"{text.name}: {heads} attention heads cannot share {kv_heads} key/value heads evenly.")
    text.must_be("hidden_act", "silu")
    text.must_be("attention_bias", qkv_bias)
    text.must_be("use_sliding_window", False)
    text.ignore("sliding_window", "max_window_layers")  # read only when use_sliding_window is true
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        rope=read_rope(text, head_dim, rope_theta, layout, pairing, partial_rotary),
    )


def with_experts(text: TextSpec, experts: ExpertsSpec, sparse: Container[int]) -> TextSpec:
    """The decoder with experts as the MLP of the layers that are `sparse`."""
    layers = (dataclasses.replace(layer, mlp=experts) if index in sparse else layer for index, layer in enumerate(text.layers))
    return dataclasses.replace(text, layers=tuple(layers))


def check_experts(fields: Fields, spec: ExpertsSpec) -> ExpertsSpec:
    if spec.chosen > spec.count:
        raise ConfigError(f"{fields.name}: 'num_experts_per_tok' is {spec.chosen}, but there are {spec.count} experts.")
    if spec.groups is not None:
        count, chosen = spec.groups
        if spec.count % count or not chosen <= count or spec.chosen > chosen * spec.count // count:
            raise ConfigError(
                f"{fields.name}: {spec.chosen} of {spec.count} experts cannot be chosen from 'topk_group' {chosen} of "
                f"'n_group' {count} groups."
            )
    return spec


def make_spec(
    family: str,
    parts: tuple[Fields, Fields, Fields],  # config.json, its text fields, its vision fields
    text: TextSpec,
    vision: VisionSpec,
    tokens: MediaTokens,
) -> ModelSpec:
    """The whole spec, after the checks that every family shares and after every field was read."""
    config, text_fields, vision_fields = parts
    if vision.out_hidden_size != text.hidden_size:
        raise ConfigError(
            f"{config.name} contradicts itself: the tower's rows are {vision.out_hidden_size} wide ('out_hidden_size'), "
            f"the language model {text.hidden_size} ('hidden_size')."
        )
    spec = ModelSpec(
        family=family,
        text=text,
        vision=vision,
        tokens=tokens,
        dtype=read_dtype(config, text_fields),
        eos_token_ids=read_eos(config, text_fields),
    )
    for part in (vision_fields, text_fields, config):
        part.done()
    return spec


def check_patch_tower(fields: Fields, spec: PatchTowerSpec) -> None:
    """Conditions that the shared tower relies on."""
    size, heads = spec.block.hidden_size, spec.block.num_heads
    if size % heads or spec.block.head_dim % 4:
        raise ConfigError(f"{fields.name}: 'hidden_size' {size} over {heads} heads gives no head size divisible by 4.")
    late = [layer for layer in spec.deepstack_layers if not 0 <= layer < spec.depth]
    if late:
        raise ConfigError(f"{fields.name}: 'deepstack_visual_indexes' names block {late[0]}, but 'depth' is {spec.depth}.")


def read_dtype(config: Fields, text: Fields) -> Literal["bfloat16", "float16", "float32"]:
    """The dtype the checkpoint was saved in, under either of its two names, at either level."""
    found = [f.take(name, None) for f in (text, config) for name in ("dtype", "torch_dtype")]
    name = next((value for value in found if value is not None), "float32")
    if name not in ("bfloat16", "float16", "float32"):
        raise ConfigError(f"{config.name}: 'dtype' is {name!r}, but must be bfloat16, float16 or float32.")
    return cast(Literal["bfloat16", "float16", "float32"], name)


def read_tie(config: Fields, text: Fields) -> bool:
    """tie_word_embeddings, which transformers before 5 wrote into text_config.

    Small fp8 checkpoints are published that say false outside and true inside. Taken as true: loading checks that a head that
    is stored is the embedding.
    """
    outer, inner = config.take("tie_word_embeddings", None), text.take("tie_word_embeddings", None)
    if outer is True and inner is False:
        raise ConfigError(f"{config.name} contradicts itself: 'tie_word_embeddings' is {outer} there, {inner} in text_config.")
    return bool(outer or inner)


def read_eos(config: Fields, text: Fields) -> tuple[int, ...]:
    value = text.take("eos_token_id", None)
    value = config.take("eos_token_id", ()) if value is None else value
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def read_rope(
    text: Fields,
    head_dim: int,
    default_theta: float,
    layout: RopeLayout,
    pairing: Literal["halves", "adjacent"],
    default_partial: float = 1.0,
) -> TextRopeSpec:
    """Rotary settings: rope_theta and rope_scaling in older configs, rope_parameters in newer ones."""
    theta = text.number("rope_theta", default_theta)
    partial = text.number("partial_rotary_factor", default_partial)
    if "rope_parameters" in text and "rope_scaling" in text:
        raise ConfigError(f"{text.name} has both 'rope_parameters' and 'rope_scaling'.")
    where = "rope_parameters" if "rope_parameters" in text else "rope_scaling"
    rope = text.section(where, {}) if layout == "plain" else text.section(where)
    text.ignore("rope_parameters", "rope_scaling")
    kinds = ("default",) if layout == "plain" else ("default", "mrope")
    rope.must_be("type", *kinds)
    rope.must_be("rope_type", *kinds)
    rope.must_be("mrope_interleaved", layout == "interleaved")
    theta = rope.number("rope_theta", theta)
    rotary_dim = int(head_dim * rope.number("partial_rotary_factor", partial))
    if layout == "plain":
        rope.done()
        return TextRopeSpec(theta, rotary_dim, (rotary_dim // 2, 0, 0), "blocked", pairing)
    sections = rope.integers("mrope_section")
    rope.done()
    if len(sections) != 3 or 2 * sum(sections) != rotary_dim:
        raise ConfigError(
            f"{rope.name}: 'mrope_section' is {list(sections)}, but must be three numbers that sum to {rotary_dim // 2}."
        )
    return TextRopeSpec(theta, rotary_dim, (sections[0], sections[1], sections[2]), layout, pairing)


def read_vision_rope_theta(vision: Fields) -> float:
    """Every published tower uses 10000; newer configs write it down."""
    if "rope_parameters" not in vision:
        return 10000.0
    rope = vision.section("rope_parameters")
    rope.must_be("rope_type", "axial")
    theta = rope.number("rope_theta", 10000.0)
    rope.done()
    return theta


def read_patches(
    config: Fields, spec: ModelSpec, limits: tuple[int, int], mean: tuple[float, ...], std: tuple[float, ...]
) -> PatchSpec:
    """What images and videos have in common; sizes must agree with the tower's. The last three are the family's defaults.

    The areas are min_pixels and max_pixels, or under newer names size.shortest_edge and size.longest_edge.
    """
    least, most = limits
    if "size" in config:
        size = config.section("size")
        least = size.integer("min_pixels", size.integer("shortest_edge", least))
        most = size.integer("max_pixels", size.integer("longest_edge", most))
        size.done()
    patch, merge = spec.patch_tower.patch_embed, spec.patch_tower.merge_size
    for name, expected in (
        ("patch_size", patch.patch_size),
        ("temporal_patch_size", patch.temporal_patch_size),
        ("merge_size", merge),
    ):
        if (value := config.integer(name, expected)) != expected:
            raise ConfigError(f"{config.name}: '{name}' is {value}, but the model's config.json says {expected}.")
    means, stds = config.numbers("image_mean", mean), config.numbers("image_std", std)
    if len(means) != 3 or len(stds) != 3 or 0.0 in stds:
        raise ConfigError(f"{config.name}: 'image_mean' and 'image_std' must hold three numbers each, std none of them 0.")
    return PatchSpec(
        min_pixels=config.integer("min_pixels", least),
        max_pixels=config.integer("max_pixels", most),
        patch_size=patch.patch_size,
        temporal_patch_size=patch.temporal_patch_size,
        merge_size=merge,
        mean=(means[0], means[1], means[2]),
        std=(stds[0], stds[1], stds[2]),
    )


def finish_processor(config: Fields, resample: int = 3) -> None:
    """Steps that every processor here takes; a checkpoint that switches one off is refused. Every field must be read by now."""
    for step in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        config.must_be(step, True)
    config.must_be("resample", resample)
    if "rescale_factor" in config and abs(config.number("rescale_factor") - 1 / 255) > 1e-9:
        raise ConfigError(f"{config.name}: 'rescale_factor' is {config.take('rescale_factor')}, but only 1/255 is supported.")
    config.must_be("do_center_crop", False)
    config.must_be("do_pad", False)
    config.must_be("crop_size", None)
    config.must_be("pad_size", None)
    config.must_be("do_sample_frames", True, False)
    config.must_be("cap_pixels_per_frame", False)
    config.must_be("default_to_square", True, False)  # read by other resizes than these families'
    config.ignore(
        "image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "input_data_format",
        "data_format", "device", "return_tensors", "disable_grouping", "return_metadata", "video_metadata", "size_divisor",
        "max_image_size", "use_token_compression", "max_video_tokens", "num_frames", "rescale_factor", "image_seq_length",
    )  # fmt: skip
    config.done()
