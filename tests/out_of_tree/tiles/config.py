"""config.json as a spec."""

from dataclasses import dataclass

from sightline.errors import ConfigError
from sightline.models import hf_config
from sightline.models.fields import Fields
from sightline.spec import MediaTokens, ModelSpec, VisionSpec


@dataclass(frozen=True)
class TileTowerSpec(VisionSpec):
    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    patch_size: int
    tile_size: int
    merge_size: int

    @property
    def side(self) -> int:
        """Patches along a side of a tile."""
        return self.tile_size // self.patch_size

    @property
    def patch_width(self) -> int:
        return 3 * self.patch_size**2

    @property
    def joined_size(self) -> int:
        return self.hidden_size * self.merge_size**2

    @property
    def summary(self) -> str:
        return f"{self.depth} blocks of {self.hidden_size}, tiles of {self.tile_size} pixels"


def read_spec(config: Fields) -> ModelSpec:
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
    fields = config.section("vision_config")
    vision = TileTowerSpec(
        out_hidden_size=fields.integer("out_hidden_size"),
        depth=fields.integer("num_layers"),
        hidden_size=fields.integer("hidden_size"),
        num_heads=fields.integer("num_heads"),
        intermediate_size=fields.integer("intermediate_size"),
        patch_size=fields.integer("patch_size"),
        tile_size=fields.integer("tile_size"),
        merge_size=fields.integer("merge_size"),
    )
    if vision.tile_size % (vision.patch_size * vision.merge_size):
        raise ConfigError(f"{fields.name}: 'tile_size' {vision.tile_size} is no whole number of merged patches.")
    tokens = MediaTokens(config.token("image_token_id"), None)
    return hf_config.make_spec("tiles-vl", (config, text_fields, fields), text, vision, tokens)
