"""config.json as a spec."""

from sightline.models import hf_config
from sightline.models.fields import Fields
from sightline.spec import (
    MediaTokens,
    MlpMergerSpec,
    ModelSpec,
    PatchEmbeddingSpec,
    PatchTowerSpec,
    TowerBlockSpec,
    WindowSpec,
)


def read_spec(config: Fields) -> ModelSpec:
    text_fields = hf_config.split_text(config)
    text = hf_config.read_text(
        text_fields,
        rope_theta=1e6,
        norm_eps=1e-5,
        qk_norm=False,
        qkv_bias=True,
        sandwich_norm=False,
        tie=hf_config.read_tie(config, text_fields),
        layout="blocked",
        pairing="halves",
    )
    fields = config.section("vision_config")
    fields.must_be("hidden_act", "silu")
    patch = fields.integer("patch_size", 14)
    fields.must_be("spatial_patch_size", patch)
    vision = PatchTowerSpec(
        out_hidden_size=fields.integer("out_hidden_size", 3584),
        depth=fields.integer("depth", 32),
        patch_embed=PatchEmbeddingSpec(
            in_channels=fields.integer("in_channels", fields.integer("in_chans", 3)),
            patch_size=patch,
            temporal_patch_size=fields.integer("temporal_patch_size", 2),
            bias=False,
            norm=False,
        ),
        block=TowerBlockSpec(
            hidden_size=fields.integer("hidden_size", 3584),
            num_heads=fields.integer("num_heads", 16),
            intermediate_size=fields.integer("intermediate_size", 3420),
            norm="rms",
            norm_eps=1e-6,
            mlp="gated_silu",
            mlp_bias=True,
            qkv_bias=True,
            proj_bias=True,
        ),
        rope_theta=hf_config.read_vision_rope_theta(fields),
        merge_size=fields.integer("spatial_merge_size", 2),
        merger=MlpMergerSpec(norm="rms"),
        window=WindowSpec(
            window_pixels=fields.integer("window_size", 112),
            full_attention_layers=fields.integers("fullatt_block_indexes", (7, 15, 23, 31)),
        ),
    )
    hf_config.check_patch_tower(fields, vision)
    fields.ignore("tokens_per_second")  # the processor reads it
    tokens = MediaTokens(config.token("image_token_id", 151655), config.token("video_token_id", 151656))
    config.ignore("vision_start_token_id", "vision_end_token_id", "vision_token_id")  # the tokenizer's names are what is used
    return hf_config.make_spec("qwen2.5-vl", (config, text_fields, fields), text, vision, tokens)
