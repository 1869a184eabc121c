"""What `sightline model new` writes: config.json by size, processor files, special tokens."""

from collections.abc import Mapping
from typing import Any

from sightline.models import hf_config
from sightline.models.families.qwen3_vl.sizes import SPECIAL_TOKENS as QWEN3_TOKENS
from sightline.prompt.byte_tokenizer import SpecialTokens


def _size(text: Mapping[str, Any], vision: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "understand_projector_stride": 2,
        "projector_bias": False,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3",
            "attention_bias": False,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            **text,
        },
        "vision_config": {
            "model_type": "perception_encoder",
            "num_channels": 3,
            "patch_size": 14,
            "hidden_act": "quick_gelu",
            "layer_norm_eps": 1e-5,
            "use_cls_token": False,
            "use_ln_pre": True,
            "use_ln_post": False,
            "use_abs_posemb": True,
            "use_rope2d": True,
            "ls_init_value": 0.1,
            **vision,
        },
    }


SIZES = {
    "tiny": _size(
        {
            "num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "intermediate_size": 192, "vocab_size": 320, "max_position_embeddings": 8192, "rope_theta": 1e4,
        },
        {"layers": 3, "width": 192, "heads": 2, "mlp_ratio": 1.5, "image_size": 168},
    ),
    "10b": _size(
        {
            "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 65536,
        },
        {"layers": 47, "width": 1536, "heads": 16, "mlp_ratio": 8960 / 1536, "image_size": 728},
    ),
}  # fmt: skip


def _preprocessor(view: int, window: int, longest: int) -> dict[str, Any]:
    return {
        "size": {"height": view, "width": view},
        "patch_size": window,
        "max_image_size": longest,
        "image_mean": list(hf_config.CLIP_MEAN),
        "image_std": list(hf_config.CLIP_STD),
        "resample": 2,
        "processor_class": "Step3VLProcessor",
    }


PREPROCESSOR = _preprocessor(728, 504, 3024)
TINY_PREPROCESSOR = _preprocessor(168, 112, 672)
# Of those behind Qwen3's only the id of <im_patch> is known, 151679. Where the others are is a guess, on which nothing but
# checkpoints written here relies.
SPECIAL_TOKENS = SpecialTokens(
    QWEN3_TOKENS.first,
    (
        *QWEN3_TOKENS.names,
        *(f"<|reserved_{number}|>" for number in range(9)),
        *("<im_start>", "<im_patch>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
    ),
)
