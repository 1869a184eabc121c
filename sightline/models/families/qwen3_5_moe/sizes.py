"""What `sightline model new` writes: config.json by size."""

from typing import Any

from sightline.models.families.qwen3_5.sizes import LARGE_TOWER, TINY_TEXT, TINY_TOWER, config, text

_TYPE = "qwen3_5_moe"


def _experts(count: int, chosen: int, intermediate: int) -> dict[str, int]:
    return {
        "num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": intermediate,
        "shared_expert_intermediate_size": intermediate,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "tiny": config(_TYPE, {**TINY_TEXT, **_experts(12, 4, 80)}, TINY_TOWER),
    "35b-a3b": config(_TYPE, text(40, 2048, 16, 2, 32, **_experts(256, 8, 512)), LARGE_TOWER),
    "122b-a10b": config(_TYPE, text(48, 3072, 32, 2, 64, **_experts(256, 8, 1024)), LARGE_TOWER),
    "397b-a17b": config(_TYPE, text(60, 4096, 32, 2, 64, **_experts(512, 10, 1024)), LARGE_TOWER),
}
