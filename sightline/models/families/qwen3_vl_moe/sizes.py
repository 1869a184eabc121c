"""What `sightline model new` writes: config.json by size."""

from typing import Any

from sightline.models.families.qwen3_vl.sizes import LARGE_TOWER, TINY_TEXT, TINY_TOWER, make_size


def _with_experts(text: dict[str, Any], count: int, chosen: int, intermediate: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl_moe_text", "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
        "num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": intermediate, **text,
    }  # fmt: skip


def _text(layers: int, hidden: int, heads: int, dense: int, intermediate: int) -> dict[str, Any]:
    text = {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": 4,
        "intermediate_size": dense,
    }  # fmt: skip
    return _with_experts(text, 128, 8, intermediate)


_TOWER = {**LARGE_TOWER, "model_type": "qwen3_vl_moe"}
SIZES = {
    # One layer stays dense; no side of an expert equals another.
    "tiny": make_size(
        _with_experts({**TINY_TEXT, "mlp_only_layers": [2]}, 12, 4, 96),
        {**TINY_TOWER, "model_type": "qwen3_vl_moe"},
        [12, 10, 10],
        tie=False,
        theta=1e4,
    ),
    "30b-a3b": make_size(_text(48, 2048, 32, 6144, 768), _TOWER, [24, 20, 20], tie=False),
    "235b-a22b": make_size(_text(94, 4096, 64, 12288, 1536), _TOWER, [24, 20, 20], tie=False),
}
