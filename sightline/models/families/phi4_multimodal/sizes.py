"""What `sightline model new` writes: config.json by size, the processor's file, special tokens."""

from collections.abc import Mapping
from typing import Any

from sightline.models.families.phi4_multimodal.config import ADAPTED
from sightline.prompt.byte_tokenizer import SpecialTokens


def make_size(
    text: Mapping[str, Any], rope: Mapping[str, Any], rank: int, alpha: float, crop: int, **more: Any
) -> dict[str, Any]:
    """As published, flat; a tower of another size in vision_config."""
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "lm_head_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.75,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "longrope", **rope},
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "vision_lora": {"dp": 0.0, "layer": ADAPTED, "lora_alpha": alpha, "r": rank},
        "embd_layer": {
            "embedding_cls": "image_audio",
            "image_embd_layer": {
                "crop_size": crop,
                "embedding_cls": "tune_image",
                "hd_transform_order": "sub_glb",
                "image_token_compression_cls": "avg_pool_2d",
                "projection_cls": "mlp",
                "use_hd_transform": True,
                "with_learnable_separator": True,
            },
        },
        **text,
        **more,
    }


TINY_TEXT = {
    "num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 192,
    "vocab_size": 320, "max_position_embeddings": 8192, "original_max_position_embeddings": 1024,
}  # fmt: skip
TEXT_5B = {
    "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 200064, "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
TINY_TOWER = {
    "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
TINY_ROPE = {
    "short_factor": [1.0 + index / 20 for index in range(12)],
    "long_factor": [1.0 + index * index / 4 for index in range(12)],
}
ROPE_5B = {
    "short_factor": [1.0] * 48,
    "long_factor": [
        1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, 2.446418898,
        2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424,
        6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252,
        16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23,
        32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77,
    ],
}  # fmt: skip

SIZES = {
    "tiny": make_size(TINY_TEXT, TINY_ROPE, 8, 4, 56, vision_config=TINY_TOWER, tie_word_embeddings=False),
    "5.6b": make_size(TEXT_5B, ROPE_5B, 256, 512, 448),
}
PREPROCESSOR = {
    "image_processor_type": "Phi4MMImageProcessor",
    "processor_class": "Phi4MMProcessor",
    "dynamic_hd": 36,
}
# Ids 200010, 200011 and those from 200018 on are named in public code; the others are placed by inference.
SPECIAL_TOKENS = SpecialTokens(
    199999,
    (
        *("<|endoftext|>", *(f"<|endoftext{number}|>" for number in range(18)), "<|endofprompt|>"),
        *("<|assistant|>", "<|end|>", "<|user|>", "<|system|>", "<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>"),
        *("<|tool_response|>", "<|tag|>"),
    ),
)
