"""config.json as a spec."""

from dataclasses import dataclass

from sightline.errors import ConfigError
from sightline.models import hf_config
from sightline.models.fields import Fields
from sightline.spec import (
    MediaTokens,
    ModelSpec,
    PatchEmbeddingSpec,
    PatchTowerSpec,
    PositionGridSpec,
    TowerBlockSpec,
)

# Two convolutions halve each side of the grid, so that 4 x 4 patches are a row. They see beyond those, but no row sees another
# picture's patches.
DOWNSAMPLING = 4


@dataclass(frozen=True)
class ConvMergerSpec:
    """Two 3 x 3 convolutions of stride 2 over the grid, each of which doubles the numbers, and a linear map."""

    bias: bool  # of the linear map

    def weights(self, joined: int, out: int) -> int:
        size = joined // DOWNSAMPLING**2
        return 9 * size * 2 * size + 9 * 2 * size * 4 * size + 4 * size * out


def read_spec(config: Fields) -> ModelSpec:
    text_fields = hf_config.split_text(config)
    text = hf_config.read_text(
        text_fields,
        rope_theta=1e4,
        norm_eps=1e-6,
        qk_norm=True,
        qkv_bias=False,
        sandwich_norm=False,
        tie=hf_config.read_tie(config, text_fields),
        layout="plain",
        pairing="halves",
    )
    fields = config.section("vision_config")
    vision = read_tower(fields, text.hidden_size, config.flag("projector_bias", False))
    config.must_be("understand_projector_stride", 2)
    config.ignore("image_token_len", "patch_token_len")  # rows of a view and of a window; they follow from the sizes
    tokens = MediaTokens(config.token("image_token_id", 151679), None)
    return hf_config.make_spec("step3-vl", (config, text_fields, fields), text, vision, tokens)


def read_tower(fields: Fields, out: int, projector_bias: bool) -> PatchTowerSpec:
    for name, value in (
        *(("use_cls_token", False), ("ues_cls_token", False), ("use_ln_pre", True), ("use_ln_post", False)),
        *(("use_abs_posemb", True), ("use_rope2d", True), ("hidden_act", "quick_gelu"), ("pool_type", "none")),
    ):
        fields.must_be(name, value)
    fields.ignore("ls_init_value", "output_dim")  # how layer scales begin; the width of what is not there: a pooled vector
    size, patch = fields.integer("width", 1536), fields.integer("patch_size", 14)
    image = fields.integer("image_size", 728)
    if image % (patch * DOWNSAMPLING):
        raise ConfigError(f"{fields.name}: 'image_size' is {image}, but must be a multiple of {patch * DOWNSAMPLING}.")
    spec = PatchTowerSpec(
        out_hidden_size=out,
        depth=fields.integer("layers", 47),
        patch_embed=PatchEmbeddingSpec(
            in_channels=fields.integer("num_channels", 3), patch_size=patch, temporal_patch_size=1, bias=False, norm=False
        ),
        block=TowerBlockSpec(
            hidden_size=size,
            num_heads=fields.integer("heads", 16),
            intermediate_size=int(size * fields.number("mlp_ratio", 8960 / 1536)),
            norm="layer",
            norm_eps=fields.number("layer_norm_eps", 1e-5),
            mlp="quick_gelu",
            mlp_bias=True,
            qkv_bias=True,
            proj_bias=True,
            layer_scale=True,
        ),
        rope_theta=1e4,
        columns_first=True,
        merge_size=DOWNSAMPLING,
        merger=ConvMergerSpec(projector_bias),
        position_grid=PositionGridSpec(side=image // patch, mode="bilinear", align_corners=False),
    )
    hf_config.check_patch_tower(fields, spec)
    return spec
