"""What `sightline model new` writes: config.json by size, the processors' files, special tokens."""

from typing import Any

from sightline.models.families.qwen3_vl.sizes import PREPROCESSOR as QWEN3_PREPROCESSOR
from sightline.models.families.qwen3_vl.sizes import SPECIAL_TOKENS as QWEN3_TOKENS
from sightline.models.families.qwen3_vl.sizes import VIDEO_PREPROCESSOR as QWEN3_VIDEO_PREPROCESSOR
from sightline.prompt.byte_tokenizer import SpecialTokens

PREPROCESSOR, VIDEO_PREPROCESSOR = QWEN3_PREPROCESSOR, QWEN3_VIDEO_PREPROCESSOR
SPECIAL_TOKENS = SpecialTokens(
    248044,
    (
        *QWEN3_TOKENS.names,
        *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
        "<|audio_pad|>",
    ),
)


def config(model_type: str, text: dict[str, Any], vision: dict[str, Any], tie: bool = False) -> dict[str, Any]:
    layers, theta, sections = text["num_hidden_layers"], text.pop("rope_theta", 10000000), text.pop("sections", [11, 11, 10])
    kinds = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(layers)]
    return {
        "text_config": {
            "model_type": f"{model_type}_text",
            "attention_bias": False,
            "attn_output_gate": True,
            "full_attention_interval": 4,
            "head_dim": 256,
            "hidden_act": "silu",
            "layer_types": kinds,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_value_head_dim": 128,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.25, "mrope_section": sections,
                "mrope_interleaved": True,
            },
            "vocab_size": 248320,
            **text,
        },
        "vision_config": {
            "model_type": f"{model_type}_vision",
            "deepstack_visual_indexes": [],
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
    }  # fmt: skip


def text(layers: int, hidden: int, heads: int, kv_heads: int, value_heads: int, **mlp: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "linear_num_value_heads": value_heads, **mlp,
    }  # fmt: skip


TINY_TEXT = {  # heads of sizes that GPU kernels take; keys and values of different ones
    **text(4, 128, 4, 2, 4), "head_dim": 64, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "vocab_size": 320, "max_position_embeddings": 8192, "rope_theta": 10000, "sections": [3, 3, 2],
}  # fmt: skip
TINY_TOWER = {"depth": 2, "hidden_size": 144, "num_heads": 2, "intermediate_size": 160, "num_position_embeddings": 64}
_SMALLEST_TOWER = {"depth": 12, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12}
_SMALL_TOWER = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096}
LARGE_TOWER = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
_TYPE = "qwen3_5"

SIZES = {
    "tiny": config(_TYPE, {**TINY_TEXT, "intermediate_size": 192}, TINY_TOWER),
    "0.8b": config(_TYPE, text(24, 1024, 8, 2, 16, intermediate_size=3584), _SMALLEST_TOWER, tie=True),
    "2b": config(_TYPE, text(24, 2048, 8, 2, 16, intermediate_size=6144), _SMALL_TOWER, tie=True),
    "4b": config(_TYPE, text(32, 2560, 16, 4, 32, intermediate_size=9216), _SMALL_TOWER, tie=True),
    "9b": config(_TYPE, text(32, 4096, 16, 4, 32, intermediate_size=12288), LARGE_TOWER),
    "27b": config(_TYPE, text(64, 5120, 24, 4, 48, intermediate_size=17408), LARGE_TOWER),
}
