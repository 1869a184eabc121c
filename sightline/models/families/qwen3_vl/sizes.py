"""What `sightline model new` writes: config.json by size, the processors' files, special tokens."""

from typing import Any

from sightline.models import hf_config
from sightline.models.families.qwen2_5_vl.sizes import SPECIAL_TOKENS as QWEN2_5_TOKENS
from sightline.prompt.byte_tokenizer import SpecialTokens


def make_size(
    text: dict[str, Any], vision: dict[str, Any], sections: list[int], tie: bool, theta: float = 5e6
) -> dict[str, Any]:
    rope = {"rope_type": "default", "mrope_section": sections, "mrope_interleaved": True}
    return {
        "text_config": {
            "model_type": "qwen3_vl_text",
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
            "model_type": "qwen3_vl_vision",
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
LARGE_TOWER = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}
TINY_TOWER = {
    "depth": 4, "hidden_size": 144, "num_heads": 2, "intermediate_size": 160, "deepstack_visual_indexes": [0, 1, 2],
    "num_position_embeddings": 64,
}  # fmt: skip
TINY_TEXT = {  # heads of a size that GPU kernels take
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

SIZES = {
    "tiny": make_size(TINY_TEXT, TINY_TOWER, [12, 10, 10], tie=False, theta=1e4),
    "2b": make_size(_text(28, 2048, 16, 6144), _SMALL_TOWER, [24, 20, 20], tie=True),
    "4b": make_size(_text(36, 2560, 32, 9728), _SMALL_TOWER, [24, 20, 20], tie=True),
    "8b": make_size(_text(36, 4096, 32, 12288), LARGE_TOWER, [24, 20, 20], tie=False),
    "32b": make_size(_text(64, 5120, 64, 25600), LARGE_TOWER, [24, 20, 20], tie=False),
}
PREPROCESSOR = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    **_PROCESSING,
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
VIDEO_PREPROCESSOR = {
    "size": {"longest_edge": 25165824, "shortest_edge": 4096},
    **_PROCESSING,
    "video_processor_type": "Qwen3VLVideoProcessor",
}
SPECIAL_TOKENS = SpecialTokens(
    QWEN2_5_TOKENS.first, (*QWEN2_5_TOKENS.names, "<tool_response>", "</tool_response>", "<think>", "</think>")
)
