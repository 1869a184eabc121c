"""What `sightline model new` writes: config.json by size, the processors' files, special tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from sightline.models import hf_config
from sightline.prompt.byte_tokenizer import SpecialTokens


def make_size(
    text: Mapping[str, Any], vision: Mapping[str, Any], sections: Sequence[int], theta: float = 10000.0
) -> dict[str, Any]:
    return {
        "text_config": {
            "model_type": "glm4v_text",
            "attention_bias": True,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "rope_theta": theta,
            "rope_scaling": {"rope_type": "default", "mrope_section": list(sections)},
            "max_position_embeddings": 65536,
            **text,
        },
        "vision_config": {
            "model_type": "glm4v_vision",
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


TINY_TEXT = {
    "num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 192, "vocab_size": 320, "max_position_embeddings": 8192,
}  # fmt: skip
TINY_SECTIONS, SECTIONS_9B = (4, 6, 6), (8, 12, 12)
TINY_TOWER = {"depth": 3, "hidden_size": 128, "num_heads": 2, "intermediate_size": 176, "image_size": 112}
TEXT_9B = {
    "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
    "intermediate_size": 13696, "vocab_size": 151552,
}  # fmt: skip
TOWER_9B = {"depth": 24, "hidden_size": 1536, "num_heads": 12, "intermediate_size": 13696}

# What images and videos have in common in their processor files.
_PROCESSING: dict[str, Any] = {
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": list(hf_config.CLIP_MEAN),
    "image_std": list(hf_config.CLIP_STD),
    "processor_class": "Glm4vProcessor",
}

SIZES = {
    "tiny": make_size(TINY_TEXT, TINY_TOWER, TINY_SECTIONS),
    "9b": make_size(TEXT_9B, TOWER_9B, SECTIONS_9B),
}
PREPROCESSOR = {
    "size": {"shortest_edge": 12544, "longest_edge": 9633792},
    **_PROCESSING,
    "image_processor_type": "Glm4vImageProcessor",
}
VIDEO_PREPROCESSOR = {
    "size": {"shortest_edge": 12544, "longest_edge": 47040000},
    **_PROCESSING,
    "video_processor_type": "Glm4vVideoProcessor",
}
# The first 16 are as in a public dump of GLM-4.1V's tokenizer. The last four are placed by inference: the checkpoint lists
# 151348 as an end token and writes its answers as <think> … </think><answer> … </answer>.
SPECIAL_TOKENS = SpecialTokens(
    151329,
    (
        *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
        *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>"),
        *("<think>", "</think>", "<answer>", "</answer>"),
    ),
)
