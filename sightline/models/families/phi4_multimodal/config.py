"""config.json as a spec. The published file says nothing of the tower: its sizes are in the code that comes with it."""

import math
from dataclasses import dataclass

from sightline.errors import ConfigError
from sightline.models import hf_config
from sightline.models.fields import Fields
from sightline.spec import (
    AdapterSpec,
    AttentionSpec,
    GatedMLPSpec,
    LayerSpec,
    LongRopeSpec,
    MediaTokens,
    ModelSpec,
    TextRopeSpec,
    TextSpec,
    VisionSpec,
)

IMAGE_TOKEN_ID = 200010
VISION_ADAPTER = 0  # index of the only one that is loaded
# Which matrices the vision adapter has pairs for: all of a layer.
ADAPTED = r"layers.*((self_attn\.(qkv_proj|o_proj))|(mlp\.(gate_up|down)_proj))"


@dataclass(frozen=True)
class CropTowerSpec(VisionSpec):
    """SigLIP on crops of one size; what is padded in them does not count."""

    depth: int  # blocks that run: features are those before the last one
    hidden_size: int
    num_heads: int
    intermediate_size: int
    patch_size: int
    crop_size: int  # pixels along a side
    norm_eps: float

    @property
    def side(self) -> int:
        """Patches along a side of a crop."""
        return self.crop_size // self.patch_size

    @property
    def patch_width(self) -> int:
        return 3 * self.patch_size**2

    @property
    def summary(self) -> str:
        return f"{self.depth} blocks of {self.hidden_size}, {self.num_heads} heads, crops of {self.crop_size} pixels"


def read_spec(config: Fields) -> ModelSpec:
    vision_fields, vision = _read_vision(config)
    text = _read_text(config)
    tokens = MediaTokens(config.token("image_token_id", IMAGE_TOKEN_ID), None)
    config.ignore("speech_lora", "audio_processor", "embd_pdrop", "resid_pdrop", "_attn_implementation")
    return hf_config.make_spec("phi4-multimodal", (config, config, vision_fields), text, vision, tokens)


def _read_vision(config: Fields) -> tuple[Fields, CropTowerSpec]:
    embedding = config.section("embd_layer")
    embedding.must_be("embedding_cls", "image_audio")
    embedding.ignore("audio_embd_layer")
    image = embedding.section("image_embd_layer")
    embedding.done()
    image.must_be("embedding_cls", "tune_image")
    image.must_be("hd_transform_order", "sub_glb")
    image.must_be("image_token_compression_cls", "avg_pool_2d")
    image.must_be("projection_cls", "mlp")
    image.must_be("use_hd_transform", True)
    image.must_be("with_learnable_separator", True)
    image.ignore("enable_gradient_checkpointing")
    crop = image.integer("crop_size", 448)
    image.done()
    fields = config.section("vision_config", {})  # in checkpoints of other sizes than the published one
    fields.must_be("hidden_act", "gelu_pytorch_tanh")
    fields.must_be("feature_layer", -2)
    fields.must_be("num_channels", 3)
    fields.must_be("image_size", crop)
    vision = CropTowerSpec(
        out_hidden_size=config.integer("hidden_size"),
        depth=fields.integer("num_hidden_layers", 27) - 1,
        hidden_size=fields.integer("hidden_size", 1152),
        num_heads=fields.integer("num_attention_heads", 16),
        intermediate_size=fields.integer("intermediate_size", 4304),
        patch_size=fields.integer("patch_size", 14),
        crop_size=crop,
        norm_eps=fields.number("layer_norm_eps", 1e-6),
    )
    if crop % (2 * vision.patch_size):
        raise ConfigError(f"{image.name}: 'crop_size' is {crop}, but must be an even number of patches of {vision.patch_size}.")
    if vision.hidden_size % vision.num_heads or vision.depth < 1:
        raise ConfigError(f"{fields.name}: {vision.hidden_size} over {vision.num_heads} heads, {vision.depth + 1} layers.")
    return fields, vision


def _read_text(config: Fields) -> TextSpec:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads, longest = config.integer("num_key_value_heads", heads), config.integer("max_position_embeddings")
    if hidden % heads or heads % kv_heads:
        raise ConfigError(f"{config.name}: {heads} attention heads, {kv_heads} of keys and values and {hidden} do not divide.")
    for field in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.must_be(field, False)
    for field in ("full_attn_mod", "interpolate_factor"):
        config.must_be(field, 1)
    config.must_be("hidden_act", "silu")
    if (window := config.integer("sliding_window", longest)) < longest:
        raise ConfigError(f"{config.name}: 'sliding_window' is {window}, but only one of {longest} or more is supported.")
    attention = AttentionSpec(heads, kv_heads, hidden // heads, False, False, _read_rope(config, hidden // heads, longest))
    layer = LayerSpec(attention, GatedMLPSpec(config.integer("intermediate_size")))
    return TextSpec(
        layers=(layer,) * config.integer("num_hidden_layers"),
        hidden_size=hidden,
        vocab_size=config.integer("vocab_size"),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        sandwich_norm=False,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        max_position=longest,
        adapters=(_read_adapter(config),),
    )


def _read_rope(config: Fields, head_dim: int, longest: int) -> TextRopeSpec:
    rope = config.section("rope_scaling")
    rope.must_be("type", "longrope")
    rope.must_be("rope_type", "longrope")
    short, long = rope.numbers("short_factor"), rope.numbers("long_factor")
    rope.done()
    rotary_dim = int(head_dim * config.number("partial_rotary_factor", 1.0))
    pairs = rotary_dim // 2
    if len(short) != pairs or len(long) != pairs or min(*short, *long) <= 0:
        raise ConfigError(f"{rope.name}: 'short_factor' and 'long_factor' must have {pairs} numbers above 0 each.")
    original = config.integer("original_max_position_embeddings", 4096)
    scale = 1.0 if longest <= original else math.sqrt(1 + math.log(longest / original) / math.log(original))
    regimes = LongRopeSpec(short, long, original, scale)
    return TextRopeSpec(config.number("rope_theta", 10000.0), rotary_dim, (pairs, 0, 0), "blocked", "halves", regimes)


def _read_adapter(config: Fields) -> AdapterSpec:
    lora = config.section("vision_lora")
    lora.must_be("layer", ADAPTED)
    lora.ignore("dp")
    rank, alpha = lora.integer("r"), lora.number("lora_alpha")
    lora.done()
    return AdapterSpec("vision", rank, alpha / rank)
