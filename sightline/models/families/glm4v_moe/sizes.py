"""What `sightline model new` writes: config.json by size."""

from collections.abc import Mapping
from typing import Any

from sightline.models.families.glm4v.sizes import SECTIONS_9B, TINY_SECTIONS, TINY_TEXT, TINY_TOWER, TOWER_9B, make_size


def _with_experts(text: Mapping[str, Any], count: int, chosen: int, intermediate: int) -> dict[str, Any]:
    return {
        **text, "model_type": "glm4v_moe_text", "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "n_routed_experts": count, "n_shared_experts": 1, "num_experts_per_tok": chosen,
        "moe_intermediate_size": intermediate, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "use_qk_norm": False,
    }  # fmt: skip


_TINY = _with_experts(TINY_TEXT, 12, 4, 96)
_108B = _with_experts(
    {
        "num_hidden_layers": 46, "hidden_size": 4096, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 10944, "vocab_size": 151552,
    },
    128, 8, 1408,
)  # fmt: skip
_TINY_TOWER = {**TINY_TOWER, "model_type": "glm4v_moe_vision"}
_TOWER = {**TOWER_9B, "model_type": "glm4v_moe_vision", "intermediate_size": 10944}


def _sizes(theta: float, positions: int) -> dict[str, dict[str, Any]]:
    return {
        "tiny": make_size(_TINY, _TINY_TOWER, TINY_SECTIONS, theta),
        "108b-a12b": make_size({**_108B, "max_position_embeddings": positions}, _TOWER, SECTIONS_9B, theta),
    }


SIZES_4_5, SIZES_4_6 = _sizes(1e4, 65536), _sizes(5e5, 131072)
