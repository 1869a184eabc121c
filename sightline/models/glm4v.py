"""GLM-4.1V: bicubic positions, convolutional merger, sandwich norms, half-rotary adjacent pairs, numbered video frames."""

from typing import TYPE_CHECKING, Any

from sightline.models import hf_config, weight_table
from sightline.models.family import Family
from sightline.models.fields import Fields
from sightline.models.weight_table import Source, WeightTable
from sightline.spec import MediaTokens, ModelSpec, PositionGridSpec, ProcessorSpec, VisionSpec

if TYPE_CHECKING:
    import torch


def read_spec(config: Fields) -> ModelSpec:
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
    fields = config.section("vision_config")
    fields.must_be("hidden_act", "silu")
    patch = fields.integer("patch_size", 14)
    out = fields.integer("out_hidden_size", 4096)
    vision = VisionSpec(
        depth=fields.integer("depth", 24),
        hidden_size=fields.integer("hidden_size", 1536),
        num_heads=fields.integer("num_heads", 12),
        intermediate_size=out,  # the blocks' MLP is as wide as the output; 'intermediate_size' is the merger's
        out_hidden_size=out,
        in_channels=fields.integer("in_channels", 3),
        patch_size=patch,
        temporal_patch_size=fields.integer("temporal_patch_size", 2),
        merge_size=fields.integer("spatial_merge_size", 2),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        mlp="gated_silu",
        mlp_bias=False,
        qkv_bias=fields.flag("attention_bias", False),
        proj_bias=False,
        patch_bias=True,
        patch_norm=True,
        position_grid=PositionGridSpec(fields.integer("image_size", 336) // patch, mode="bicubic", align_corners=False),
        window=None,
        deepstack_layers=(),
        merger="conv_gated",
        merger_norm="layer",
        merger_intermediate_size=fields.integer("intermediate_size", 13696),
        rope_theta=hf_config.read_vision_rope_theta(fields),
    )
    image = config.token("image_token_id", 151343)
    tokens = MediaTokens(
        image=image,
        video=config.token("video_token_id", 151344),
        video_row=image,
        image_start=config.token("image_start_token_id", 151339),
        image_end=config.token("image_end_token_id", 151340),
        video_start=config.token("video_start_token_id", 151341),
        video_end=config.token("video_end_token_id", 151342),
    )
    return hf_config.make_spec("glm-4.1v", (config, text_fields, fields), text, vision, tokens)


def read_processor(image: Fields, video: Fields | None, spec: ModelSpec) -> ProcessorSpec:
    mean, std = hf_config.CLIP_MEAN, hf_config.CLIP_STD
    token_area = 28 * 28
    return ProcessorSpec(
        image=hf_config.read_image(image, spec, (112 * 112, 15000 * token_area), "per_clip", mean, std),
        video=hf_config.read_video(video, spec, "glm", (112 * 112, 2 * 30000 * token_area), mean, std),
    )


def _channels_last(weight: "torch.Tensor") -> "torch.Tensor":
    """[out, channels, rows, columns] to [out, rows * columns * channels], the order in which patches are joined."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def weights(spec: ModelSpec) -> WeightTable:
    table: WeightTable = {}
    vision = spec.vision
    size, out, merge = vision.hidden_size, vision.out_hidden_size, vision.merge_size
    weight_table.patch_embedding(table, spec)
    grid = vision.position_grid
    assert grid is not None
    table["vision.position_table"] = weight_table.single("visual.embeddings.position_embedding.weight", grid.side**2, size)
    table["vision.patch_norm.weight"] = weight_table.single("visual.post_conv_layernorm.weight", size)
    weight_table.tower_attention(table, spec, norm_bias=False)
    weight_table.tower_gated_mlp(table, spec)
    table["vision.merger.input_norm.weight"] = weight_table.single("visual.post_layernorm.weight", size)
    table["vision.merger.downsample.weight"] = Source(
        (("visual.downsample.weight", (out, size, merge, merge)),), convert=_channels_last
    )
    table["vision.merger.downsample.bias"] = weight_table.single("visual.downsample.bias", out)
    weight_table.linear(table, "vision.merger.proj", "visual.merger.proj", out, out, False)
    for name in ("weight", "bias"):
        table[f"vision.merger.norm.{name}"] = weight_table.single(f"visual.merger.post_projection_norm.{name}", out)
    halves = tuple((f"visual.merger.{name}_proj", vision.merger_intermediate_size) for name in ("gate", "up"))
    weight_table.stacked(table, "vision.merger.gate_up", halves, out, False)
    weight_table.linear(table, "vision.merger.down", "visual.merger.down_proj", out, vision.merger_intermediate_size, False)
    norms = {
        "input_norm": "input_layernorm",
        "attention_out_norm": "post_self_attn_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "mlp_out_norm": "post_mlp_layernorm",
    }
    weight_table.decoder(table, spec.text, norms, fused_gate_up=True)
    return table


def _size(text: dict[str, Any], vision: dict[str, Any], sections: list[int]) -> dict[str, Any]:
    return {
        "text_config": {
            "attention_bias": True,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000,
            "rope_scaling": {"rope_type": "default", "mrope_section": sections},
            "max_position_embeddings": 65536,
            **text,
        },
        "vision_config": {
            "attention_bias": False,
            "hidden_act": "silu",
            "in_channels": 3,
            "image_size": 336,
            "patch_size": 14,
            "out_hidden_size": text["hidden_size"],
            "rms_norm_eps": 1e-5,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **vision,
        },
        "tie_word_embeddings": False,
    }


_TINY_TEXT = {
    "num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 192, "vocab_size": 320, "max_position_embeddings": 8192,
}  # fmt: skip
_TINY_TOWER = {"depth": 3, "hidden_size": 128, "num_heads": 2, "intermediate_size": 176, "image_size": 112}
_9B_TEXT = {
    "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
    "intermediate_size": 13696, "vocab_size": 151552,
}  # fmt: skip
_9B_TOWER = {"depth": 24, "hidden_size": 1536, "num_heads": 12, "intermediate_size": 13696}

# What images and videos have in common in their processor files.
_PROCESSING: dict[str, Any] = {
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": list(hf_config.CLIP_MEAN),
    "image_std": list(hf_config.CLIP_STD),
    "processor_class": "Glm4vProcessor",
}

FAMILY = Family(
    name="glm-4.1v",
    model_type="glm4v",
    architecture="Glm4vForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes={"tiny": _size(_TINY_TEXT, _TINY_TOWER, [4, 6, 6]), "9b": _size(_9B_TEXT, _9B_TOWER, [8, 12, 12])},
    preprocessor={
        "size": {"shortest_edge": 12544, "longest_edge": 9633792},
        **_PROCESSING,
        "image_processor_type": "Glm4vImageProcessor",
    },
    video_preprocessor={
        "size": {"shortest_edge": 12544, "longest_edge": 47040000},
        **_PROCESSING,
        "video_processor_type": "Glm4vVideoProcessor",
    },
    token_fields={
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    },
    eos_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
)
