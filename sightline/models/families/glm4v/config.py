"""config.json as a spec."""

from dataclasses import dataclass

from sightline.models import hf_config
from sightline.models.fields import Fields
from sightline.spec import (
    MediaTokens,
    ModelSpec,
    PatchEmbeddingSpec,
    PatchTowerSpec,
    PositionGridSpec,
    TextSpec,
    TowerBlockSpec,
)


@dataclass(frozen=True)
class ConvGatedMergerSpec:
    """A convolution over the patches of a row, a projection, a gated MLP."""

    intermediate_size: int

    def weights(self, joined: int, out: int) -> int:
        return joined * out + out * out + 3 * out * self.intermediate_size


def read_vision(config: Fields) -> tuple[Fields, PatchTowerSpec]:
    fields = config.section("vision_config")
    fields.must_be("hidden_act", "silu")
    patch = fields.integer("patch_size", 14)
    out = fields.integer("out_hidden_size", 4096)
    vision = PatchTowerSpec(
        out_hidden_size=out,
        depth=fields.integer("depth", 24),
        patch_embed=PatchEmbeddingSpec(
            in_channels=fields.integer("in_channels", 3),
            patch_size=patch,
            temporal_patch_size=fields.integer("temporal_patch_size", 2),
            bias=True,
            norm=True,
        ),
        block=TowerBlockSpec(
            hidden_size=fields.integer("hidden_size", 1536),
            num_heads=fields.integer("num_heads", 12),
            intermediate_size=out,  # the blocks' MLP is as wide as the output; 'intermediate_size' is the merger's
            norm="rms",
            norm_eps=fields.number("rms_norm_eps", 1e-5),
            mlp="gated_silu",
            mlp_bias=False,
            qkv_bias=fields.flag("attention_bias", False),
            proj_bias=False,
        ),
        rope_theta=hf_config.read_vision_rope_theta(fields),
        merge_size=fields.integer("spatial_merge_size", 2),
        merger=ConvGatedMergerSpec(fields.integer("intermediate_size", 13696)),
        position_grid=PositionGridSpec(fields.integer("image_size", 336) // patch, mode="bicubic", align_corners=False),
    )
    hf_config.check_patch_tower(fields, vision)
    return fields, vision


def read_spec(config: Fields, family: str = "glm-4.1v") -> ModelSpec:
    text_fields = hf_config.split_text(config)
    text = hf_config.read_text(
        text_fields,
        rope_theta=1e4,
        norm_eps=1e-5,
        qk_norm=False,
        qkv_bias=True,
        sandwich_norm=True,
        tie=hf_config.read_tie(config, text_fields),
        layout="blocked",
        pairing="adjacent",
    )
    return finish_spec(family, config, text_fields, text, MediaTokens(151343, 151344))


def finish_spec(family: str, config: Fields, text_fields: Fields, text: TextSpec, tokens: MediaTokens) -> ModelSpec:
    """`tokens`: those of the family, where config.json has none."""
    fields, vision = read_vision(config)
    found = MediaTokens(config.token("image_token_id", tokens.image), config.token("video_token_id", tokens.video))
    for kind in ("image", "video"):  # the tokenizer's names are what is used
        config.ignore(f"{kind}_start_token_id", f"{kind}_end_token_id")
    return hf_config.make_spec(family, (config, text_fields, fields), text, vision, found)
