"""What `sightline model new` writes: config.json by size, the processors' files, special tokens."""

from typing import Any

from sightline.models import hf_config
from sightline.prompt.byte_tokenizer import SpecialTokens


def _size(
    text: dict[str, Any], tie: bool, vision: dict[str, Any] | None = None, sections: tuple[int, int, int] = (16, 24, 24)
) -> dict[str, Any]:
    return {
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "default", "mrope_section": list(sections)},
            "max_position_embeddings": 128000,
            "use_sliding_window": False,
            **text,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
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

SIZES = {
    "tiny": _size({**_text(3, 128, 2, 1, 192, 320), "max_position_embeddings": 8192}, False, _TINY_TOWER, (8, 12, 12)),
    "3b": _size(_text(36, 2048, 16, 2, 11008, 151936), tie=True),
    "7b": _size(_text(28, 3584, 28, 4, 18944, 152064), tie=False),
    "32b": _size(_text(64, 5120, 40, 8, 27648, 152064), False, {"intermediate_size": 3456}),
    "72b": _size(_text(80, 8192, 64, 8, 29568, 152064), False, {"intermediate_size": 3456}),
}
PREPROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": list(hf_config.CLIP_MEAN),
    "image_std": list(hf_config.CLIP_STD),
    "processor_class": "Qwen2_5_VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessor",
}
# In the order of the published tokenizer, as those of the other families.
SPECIAL_TOKENS = SpecialTokens(
    151643,
    (
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
        *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
        *("<tool_call>", "</tool_call>"),
        *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    ),
)
