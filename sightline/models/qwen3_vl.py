"""Qwen3-VL, dense: interpolated positions, deepstack taps, interleaved M-RoPE, timestamped video frames."""

from typing import Any

from sightline.models import hf_config, weight_table
from sightline.models.family import Family
from sightline.models.fields import Fields
from sightline.models.weight_table import WeightTable
from sightline.spec import MediaTokens, ModelSpec, PositionGridSpec, ProcessorSpec, VisionSpec


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
    fields.must_be("hidden_act", "gelu_pytorch_tanh")
    positions = fields.integer("num_position_embeddings", 2304)
    hidden = fields.integer("hidden_size", 1152)
    merge = fields.integer("spatial_merge_size", 2)
    vision = VisionSpec(
        depth=fields.integer("depth", 27),
        hidden_size=hidden,
        num_heads=fields.integer("num_heads", 16),
        intermediate_size=fields.integer("intermediate_size", 4304),
        out_hidden_size=fields.integer("out_hidden_size", 3584),
        in_channels=fields.integer("in_channels", 3),
        patch_size=fields.integer("patch_size", 16),
        temporal_patch_size=fields.integer("temporal_patch_size", 2),
        merge_size=merge,
        norm="layer",
        norm_eps=1e-6,
        mlp="gelu_tanh",
        mlp_bias=True,
        qkv_bias=True,
        proj_bias=True,
        patch_bias=True,
        patch_norm=False,
        position_grid=PositionGridSpec(side=int(positions**0.5), mode="bilinear", align_corners=True),
        window=None,
        deepstack_layers=fields.integers("deepstack_visual_indexes", (8, 16, 24)),
        merger="norm_mlp",
        merger_norm="layer",
        merger_intermediate_size=hidden * merge**2,
        rope_theta=hf_config.read_vision_rope_theta(fields),
    )
    start, end = config.token("vision_start_token_id", 151652), config.token("vision_end_token_id", 151653)
    image, video = config.token("image_token_id", 151655), config.token("video_token_id", 151656)
    tokens = MediaTokens(image, video, video, start, end, start, end)
    return hf_config.make_spec("qwen3-vl", (config, text_fields, fields), text, vision, tokens)


def read_processor(image: Fields, video: Fields | None, spec: ModelSpec) -> ProcessorSpec:
    half = hf_config.HALF
    return ProcessorSpec(
        image=hf_config.read_image(image, spec, (65536, 16777216), "per_image", half, half),
        video=hf_config.read_video(video, spec, "qwen3", (131072, 786432), half, half),
    )


def weights(spec: ModelSpec) -> WeightTable:
    table: WeightTable = {}
    vision = spec.vision
    weight_table.patch_embedding(table, spec)
    grid = vision.position_grid
    assert grid is not None
    table["vision.position_table"] = weight_table.single("visual.pos_embed.weight", grid.side**2, vision.hidden_size)
    weight_table.tower_attention(table, spec, norm_bias=True)
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}.mlp", f"visual.blocks.{index}.mlp"
        weight_table.linear(table, f"{ours}.fc1", f"{theirs}.linear_fc1", vision.intermediate_size, vision.hidden_size, True)
        weight_table.linear(table, f"{ours}.fc2", f"{theirs}.linear_fc2", vision.hidden_size, vision.intermediate_size, True)
    joined = vision.hidden_size * vision.merge_size**2
    mergers = [("vision.merger", "visual.merger", vision.hidden_size)]
    mergers += [
        (f"vision.deepstack_mergers.{tap}", f"visual.deepstack_merger_list.{tap}", joined)
        for tap in range(len(vision.deepstack_layers))
    ]
    for ours, theirs, normed in mergers:
        table[f"{ours}.norm.weight"] = weight_table.single(f"{theirs}.norm.weight", normed)
        table[f"{ours}.norm.bias"] = weight_table.single(f"{theirs}.norm.bias", normed)
        weight_table.linear(table, f"{ours}.fc1", f"{theirs}.linear_fc1", joined, joined, True)
        weight_table.linear(table, f"{ours}.fc2", f"{theirs}.linear_fc2", vision.out_hidden_size, joined, True)
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    weight_table.decoder(table, spec.text, norms, fused_gate_up=False)
    return table


def _size(text: dict[str, Any], vision: dict[str, Any], sections: list[int], tie: bool, theta: float = 5e6) -> dict[str, Any]:
    rope = {"rope_type": "default", "mrope_section": sections, "mrope_interleaved": True}
    return {
        "text_config": {
            "attention_bias": False,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": theta,
            "rope_scaling": rope,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
            "num_key_value_heads": 8,
            "head_dim": 128,
            **text,
        },
        "vision_config": {
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": text["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **vision,
        },
        "tie_word_embeddings": tie,
    }


_SMALL_TOWER = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
_LARGE_TOWER = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}
_TINY_TOWER = {
    "depth": 4, "hidden_size": 144, "num_heads": 2, "intermediate_size": 160, "deepstack_visual_indexes": [0, 1, 2],
    "num_position_embeddings": 64,
}  # fmt: skip
_TINY_TEXT = {  # heads of a size that GPU kernels take
    "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 192, "vocab_size": 320, "max_position_embeddings": 8192,
}  # fmt: skip


def _text(layers: int, hidden: int, heads: int, intermediate: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": intermediate,
    }  # fmt: skip


# What images and videos have in common in their processor files.
_PROCESSING: dict[str, Any] = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": list(hf_config.HALF),
    "image_std": list(hf_config.HALF),
    "processor_class": "Qwen3VLProcessor",
}

FAMILY = Family(
    name="qwen3-vl",
    model_type="qwen3_vl",
    architecture="Qwen3VLForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes={
        "tiny": _size(_TINY_TEXT, _TINY_TOWER, [12, 10, 10], tie=False, theta=1e4),
        "2b": _size(_text(28, 2048, 16, 6144), _SMALL_TOWER, [24, 20, 20], tie=True),
        "4b": _size(_text(36, 2560, 32, 9728), _SMALL_TOWER, [24, 20, 20], tie=True),
        "8b": _size(_text(36, 4096, 32, 12288), _LARGE_TOWER, [24, 20, 20], tie=False),
        "32b": _size(_text(64, 5120, 64, 25600), _LARGE_TOWER, [24, 20, 20], tie=False),
    },
    preprocessor={
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        **_PROCESSING,
        "image_processor_type": "Qwen2VLImageProcessorFast",
    },
    video_preprocessor={
        "size": {"longest_edge": 25165824, "shortest_edge": 4096},
        **_PROCESSING,
        "video_processor_type": "Qwen3VLVideoProcessor",
    },
    token_fields={
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
)
