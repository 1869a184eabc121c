"""Processors of each family, made by hand."""

from typing import Any

from sightline.models.families.glm4v.processor import Glm4vProcessor
from sightline.models.families.glm46v.processor import Glm46vProcessor
from sightline.models.families.qwen2_5_vl.processor import Qwen25VLProcessor
from sightline.models.families.qwen3_vl.processor import Qwen3VLProcessor
from sightline.spec import PatchSpec, ProcessorSpec

FAMILIES = ("qwen2.5-vl", "qwen3-vl", "glm-4.1v", "glm-4.6v-flash", "qwen3.5")
MEAN = (0.5, 0.5, 0.5)
_OWN: dict[str, tuple[type[ProcessorSpec], dict[str, Any]]] = {
    "qwen2.5-vl": (Qwen25VLProcessor, {"fps": 2.0, "min_frames": 4, "max_frames": 768, "tokens_per_second": 2.0}),
    "qwen3-vl": (Qwen3VLProcessor, {"fps": 2.0, "min_frames": 4, "max_frames": 768}),
    "qwen3.5": (Qwen3VLProcessor, {"fps": 2.0, "min_frames": 4, "max_frames": 768}),
    "glm-4.1v": (Glm4vProcessor, {"fps": 2.0, "max_seconds": 300.0}),
    "glm-4.6v-flash": (Glm46vProcessor, {}),
}


def patch_spec(min_pixels: int, max_pixels: int, patch_size: int = 14, mean: Any = MEAN, std: Any = MEAN) -> PatchSpec:
    return PatchSpec(min_pixels, max_pixels, patch_size, temporal_patch_size=2, merge_size=2, mean=mean, std=std)


def make_processor(family: str, image: PatchSpec, video: PatchSpec | None = None, **own: Any) -> ProcessorSpec:
    """`own` are fields that the family alone has; those that are not given are as published. Without a spec of their own videos
    have that of images."""
    kind, defaults = _OWN[family]
    return kind(image=image, video=video or image, **{**defaults, **own})
