"""Qwen2.5-VL: window attention in the tower, no learned positions, blocked M-RoPE, video as one block on a time axis."""

from typing import Any

from sightline.models import hf_config, weight_table
from sightline.models.family import Family
from sightline.models.fields import Fields
from sightline.models.weight_table import WeightTable
from sightline.spec import MediaTokens, ModelSpec, ProcessorSpec, VisionSpec, WindowSpec


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
    hidden = fields.integer("hidden_size", 3584)
    merge = fields.integer("spatial_merge_size", 2)
    patch = fields.integer("patch_size", 14)
    fields.must_be("spatial_patch_size", patch)
    vision = VisionSpec(
        depth=fields.integer("depth", 32),
        hidden_size=hidden,
        num_heads=fields.integer("num_heads", 16),
        intermediate_size=fields.integer("intermediate_size", 3420),
        out_hidden_size=fields.integer("out_hidden_size", 3584),
        in_channels=fields.integer("in_channels", fields.integer("in_chans", 3)),
        patch_size=patch,
        temporal_patch_size=fields.integer("temporal_patch_size", 2),
        merge_size=merge,
        norm="rms",
        norm_eps=1e-6,
        mlp="gated_silu",
        mlp_bias=True,
        qkv_bias=True,
        proj_bias=True,
        patch_bias=False,
        patch_norm=False,
        position_grid=None,
        window=WindowSpec(
            window_pixels=fields.integer("window_size", 112),
            full_attention_layers=fields.integers("fullatt_block_indexes", (7, 15, 23, 31)),
        ),
        deepstack_layers=(),
        merger="norm_mlp",
        merger_norm="rms",
        merger_intermediate_size=hidden * merge**2,
        rope_theta=hf_config.read_vision_rope_theta(fields),
        tokens_per_second=fields.number("tokens_per_second", 4.0),
    )
    start, end = config.token("vision_start_token_id", 151652), config.token("vision_end_token_id", 151653)
    image, video = config.token("image_token_id", 151655), config.token("video_token_id", 151656)
    config.ignore("vision_token_id")  # a placeholder that no code reads
    tokens = MediaTokens(image, video, video, start, end, start, end)
    return hf_config.make_spec("qwen2.5-vl", (config, text_fields, fields), text, vision, tokens)


def read_processor(image: Fields, video: Fields | None, spec: ModelSpec) -> ProcessorSpec:
    mean, std = hf_config.CLIP_MEAN, hf_config.CLIP_STD
    token_area = 28 * 28
    return ProcessorSpec(
        image=hf_config.read_image(image, spec, (3136, 1280 * token_area), "per_image", mean, std),
        # 128 to 768 tokens per frame: what the family's own tools use; its checkpoints have no file for video
        video=hf_config.read_video(
            video, spec, "qwen2_5", (128 * token_area, 768 * token_area), mean, std, spec.vision.tokens_per_second
        ),
    )


def weights(spec: ModelSpec) -> WeightTable:
    table: WeightTable = {}
    vision = spec.vision
    weight_table.patch_embedding(table, spec)
    weight_table.tower_attention(table, spec, norm_bias=False)
    weight_table.tower_gated_mlp(table, spec)
    joined = vision.hidden_size * vision.merge_size**2
    table["vision.merger.norm.weight"] = weight_table.single("visual.merger.ln_q.weight", vision.hidden_size)
    weight_table.linear(table, "vision.merger.fc1", "visual.merger.mlp.0", joined, joined, True)
    weight_table.linear(table, "vision.merger.fc2", "visual.merger.mlp.2", vision.out_hidden_size, joined, True)
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    weight_table.decoder(table, spec.text, norms, fused_gate_up=False)
    return table


def _size(
    text: dict[str, Any], tie: bool, vision: dict[str, Any] | None = None, sections: tuple[int, int, int] = (16, 24, 24)
) -> dict[str, Any]:
    return {
        "text_config": {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "default", "mrope_section": list(sections)},
            "max_position_embeddings": 128000,
            "use_sliding_window": False,
            **text,
        },
        "vision_config": {
            "hidden_act": "silu",
            "depth": 32,
            "hidden_size": 1280,
            "num_heads": 16,
            "intermediate_size": 3420,
            "in_channels": 3,
            "out_hidden_size": text["hidden_size"],
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2,
            **(vision or {}),
        },
        "tie_word_embeddings": tie,
    }


def _text(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate, "vocab_size": vocab,
    }  # fmt: skip


_TINY_TOWER = {
    "depth": 4, "hidden_size": 160, "num_heads": 2, "intermediate_size": 176, "fullatt_block_indexes": [1, 3],
}  # fmt: skip

FAMILY = Family(
    name="qwen2.5-vl",
    model_type="qwen2_5_vl",
    architecture="Qwen2_5_VLForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes={
        "tiny": _size({**_text(3, 128, 2, 1, 192, 320), "max_position_embeddings": 8192}, False, _TINY_TOWER, (8, 12, 12)),
        "3b": _size(_text(36, 2048, 16, 2, 11008, 151936), tie=True),
        "7b": _size(_text(28, 3584, 28, 4, 18944, 152064), tie=False),
        "32b": _size(_text(64, 5120, 40, 8, 27648, 152064), False, {"intermediate_size": 3456}),
        "72b": _size(_text(80, 8192, 64, 8, 29568, 152064), False, {"intermediate_size": 3456}),
    },
    preprocessor={
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": list(hf_config.CLIP_MEAN),
        "image_std": list(hf_config.CLIP_STD),
        "processor_class": "Qwen2_5_VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
    },
    video_preprocessor=None,
    token_fields={
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
)
