"""config.json as a spec."""

from collections.abc import Callable

from sightline.models import hf_config
from sightline.models.fields import Fields
from sightline.spec import (
    MediaTokens,
    MlpMergerSpec,
    ModelSpec,
    PatchEmbeddingSpec,
    PatchTowerSpec,
    PositionGridSpec,
    TextSpec,
    TowerBlockSpec,
)


def read_spec(
    config: Fields,
    family: str = "qwen3-vl",
    with_own_layers: Callable[[Fields, TextSpec], TextSpec] = lambda fields, text: text,
) -> ModelSpec:
    """`with_own_layers`: what a family changes of the decoder, and the fields of text_config that it reads for that."""
    text_fields = hf_config.split_text(config)
    text = hf_config.read_text(
        text_fields,
        rope_theta=5e5,
        norm_eps=1e-6,
        qk_norm=True,
        qkv_bias=False,
        sandwich_norm=False,
        tie=hf_config.read_tie(config, text_fields),
        layout="interleaved",
        pairing="halves",
    )
    text = with_own_layers(text_fields, text)
    fields = config.section("vision_config")
    vision = read_tower(fields, deepstack=(8, 16, 24))
    tokens = MediaTokens(config.token("image_token_id", 151655), config.token("video_token_id", 151656))
    config.ignore("vision_start_token_id", "vision_end_token_id")  # the tokenizer's names are what is used
    return hf_config.make_spec(family, (config, text_fields, fields), text, vision, tokens)


def read_tower(fields: Fields, deepstack: tuple[int, ...]) -> PatchTowerSpec:
    """`deepstack`: layers with features for the decoder, where the config does not say."""
    fields.must_be("hidden_act", "gelu_pytorch_tanh")
    positions = fields.integer("num_position_embeddings", 2304)
    spec = PatchTowerSpec(
        out_hidden_size=fields.integer("out_hidden_size", 3584),
        depth=fields.integer("depth", 27),
        patch_embed=PatchEmbeddingSpec(
            in_channels=fields.integer("in_channels", 3),
            patch_size=fields.integer("patch_size", 16),
            temporal_patch_size=fields.integer("temporal_patch_size", 2),
            bias=True,
            norm=False,
        ),
        block=TowerBlockSpec(
            hidden_size=fields.integer("hidden_size", 1152),
            num_heads=fields.integer("num_heads", 16),
            intermediate_size=fields.integer("intermediate_size", 4304),
            norm="layer",
            norm_eps=1e-6,
            mlp="gelu_tanh",
            mlp_bias=True,
            qkv_bias=True,
            proj_bias=True,
        ),
        rope_theta=hf_config.read_vision_rope_theta(fields),
        merge_size=fields.integer("spatial_merge_size", 2),
        merger=MlpMergerSpec(norm="layer"),
        position_grid=PositionGridSpec(side=int(positions**0.5), mode="bilinear", align_corners=True),
        deepstack_layers=fields.integers("deepstack_visual_indexes", deepstack),
    )
    hf_config.check_patch_tower(fields, spec)
    return spec
