"""Tiny checkpoints with heads enough for four ranks, and with numbers of them that four ranks do not share evenly."""

import json
from pathlib import Path
from typing import Any

import torch

from sightline.models.create import SHARD_BYTES, _write_weights, create_checkpoint
from sightline.models.registry import family_named, read_model_spec

# Fields of config.json that differ from the tiny size's: query and key heads, tower heads.
HEADS: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3-vl": {"text_config": {"num_attention_heads": 6, "num_key_value_heads": 3}, "vision_config": {"num_heads": 4}},
    "qwen2.5-vl": {
        "text_config": {
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        },
        "vision_config": {"num_heads": 4},
    },
    "qwen3-vl-moe": {"text_config": {"num_attention_heads": 6, "num_key_value_heads": 3}, "vision_config": {"num_heads": 4}},
    "qwen3.5": {
        "text_config": {
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 6,
        },
        "vision_config": {"num_heads": 4},
    },
    "qwen3.5-moe": {
        "text_config": {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
        },
        "vision_config": {"num_heads": 4},
    },
    "glm-4.6v": {"text_config": {"num_attention_heads": 4, "num_key_value_heads": 1}, "vision_config": {"num_heads": 4}},
    "step3-vl": {"text_config": {"num_attention_heads": 6, "num_key_value_heads": 3}, "vision_config": {"heads": 4}},
    "glm-4.1v": {"text_config": {"num_attention_heads": 4, "num_key_value_heads": 1}, "vision_config": {"num_heads": 4}},
}


def many_heads(folder: Path, family: str, heads: dict[str, dict[str, Any]] | None = None, weights: bool = True) -> Path:
    """With `heads`, those. Without `weights`, config.json and the like alone."""
    create_checkpoint(folder, family, "tiny", dtype=torch.float32, weights=False)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for part, fields in (heads or HEADS[family]).items():
        config[part] |= fields
    path.write_text(json.dumps(config))
    if not weights:
        return folder
    table = family_named(family).weight_table(read_model_spec(folder))
    _write_weights(folder, table, torch.float32, 3, SHARD_BYTES)
    return folder
