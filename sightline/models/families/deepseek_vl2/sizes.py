"""What `sightline model new` writes: config.json by size, the processor's file, special tokens."""

from typing import Any

from sightline.models import hf_config
from sightline.prompt.byte_tokenizer import SpecialTokens

_SIDE = 384
# Width and height, in tiles: of up to nine.
_CANVASES = [
    (1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2), (1, 5), (5, 1), (1, 6), (6, 1), (2, 3), (3, 2), (1, 7),
    (7, 1), (1, 8), (8, 1), (2, 4), (4, 2), (1, 9), (9, 1), (3, 3),
]  # fmt: skip
_RESOLUTIONS = [[wide * _SIDE, high * _SIDE] for wide, high in _CANVASES]
_SIGLIP = {
    "model_type": "vision", "model_name": "siglip_so400m_patch14_384", "layers": 27, "mlp_ratio": 3.7362, "patch_size": 14,
    "width": 1152,
}  # fmt: skip
_TINY_SIGLIP = {  # few patches a tile, an odd number along a side, and pixels behind the last: as in the published one
    "model_type": "vision", "model_name": "siglip_so400m_patch14_384", "layers": 2, "heads": 2, "mlp_ratio": 1.3,
    "patch_size": 75, "width": 144,
}  # fmt: skip


def _size(text: dict[str, Any], vision: dict[str, Any], **experts: Any) -> dict[str, Any]:
    return {
        "candidate_resolutions": _RESOLUTIONS,
        "global_view_pos": "head",
        "language_config": {
            "model_type": "deepseek_v2", "first_k_dense_replace": 1, "lm_head": True, "rm_head": False, "q_lora_rank": None,
            "max_position_embeddings": 4096, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "n_shared_experts": 2,
            "num_key_value_heads": text["num_attention_heads"], "vocab_size": 129280, **text, **experts,
        },
        "projector_config": {
            "model_type": "mlp_projector", "n_embed": text["hidden_size"], "input_dim": vision["width"],
        },
        "tile_tag": "2D",
        "vision_config": vision,
    }  # fmt: skip


def _text(layers: int, hidden: int, heads: int, intermediate: int, count: int, expert: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": intermediate,
        "n_routed_experts": count, "num_experts_per_tok": 6, "moe_intermediate_size": expert,
    }  # fmt: skip


_PLAIN = {  # attention with keys and values of each head
    "use_mla": False, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
}  # fmt: skip
_LATENT = {"use_mla": True, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_SIGMOIDS = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.0}
_TINY_TEXT = {
    **_text(3, 128, 2, 192, 12, 48), "num_experts_per_tok": 4, "vocab_size": 320, "max_position_embeddings": 8192,
}  # fmt: skip
_TINY_LATENT = {"use_mla": True, "kv_lora_rank": 64, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32}

SIZES = {
    "tiny": _size({**_TINY_TEXT, **_PLAIN}, _TINY_SIGLIP),
    "tiny-mla": _size({**_TINY_TEXT, **_TINY_LATENT}, _TINY_SIGLIP),
    "tiny-mla-sigmoid": _size({**_TINY_TEXT, **_TINY_LATENT}, _TINY_SIGLIP, **_SIGMOIDS),
    "3b": _size({**_text(12, 1280, 10, 6848, 64, 896), **_PLAIN}, _SIGLIP),
    "16b": _size({**_text(27, 2048, 16, 10944, 64, 1408), **_LATENT, "vocab_size": 102400}, _SIGLIP),
    "27b": _size({**_text(30, 2560, 32, 12288, 72, 1536), **_LATENT}, _SIGLIP, **_SIGMOIDS),
}
PROCESSOR: dict[str, Any] = {
    "candidate_resolutions": _RESOLUTIONS,
    "downsample_ratio": 2,
    "image_mean": list(hf_config.HALF),
    "image_std": list(hf_config.HALF),
    "image_token": "<image>",
    "normalize": True,
    "processor_class": "DeepseekVLV2Processor",
    "sft_format": "deepseek",
}
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_OWN = ("<image>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>", "<|User|>", "<|Assistant|>")
_PAD = "<｜▁pad▁｜>"
ADDED_TOKENS = (_PAD, *_OWN)  # as the makers' processor adds them
SPECIAL_TOKENS = SpecialTokens(128815, (*_OWN, BOS, EOS, _PAD))  # the last are 0, 1 and 2 in published checkpoints: here bytes
