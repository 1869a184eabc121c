"""transformers as an oracle for prompts: its processors around our byte tokenizer, its position function without weights."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import torchvision_on_cpu

torchvision_on_cpu.declare_operators()  # before transformers looks for torchvision

import transformers  # noqa: E402
from transformers.models.glm4v.modeling_glm4v import Glm4vModel  # noqa: E402
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel  # noqa: E402
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model  # noqa: E402
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel  # noqa: E402

from sightline.types import MediaItem  # noqa: E402

_MODELS = {
    "qwen2.5-vl": Qwen2_5_VLModel,
    "qwen3-vl": Qwen3VLModel,
    "qwen3.5": Qwen3_5Model,
    "glm-4.1v": Glm4vModel,
    "glm-4.6v-flash": Glm4vModel,
}


def processor(family: str, folder: Path) -> Any:
    """A processor of the family around the tokenizer in `folder`, with patches of 14 pixels merged 2 x 2."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 4000}
    numbers = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    image, video, both = {
        "qwen2.5-vl": ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", "Qwen2_5_VLProcessor"),
        "qwen3-vl": ("Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", "Qwen3VLProcessor"),
        "qwen3.5": ("Qwen2VLImageProcessor", "Qwen3VLVideoProcessor", "Qwen3VLProcessor"),
        "glm-4.1v": ("Glm4vImageProcessor", "Glm4vVideoProcessor", "Glm4vProcessor"),
        "glm-4.6v-flash": ("Glm46VImageProcessor", "Glm46VVideoProcessor", "Glm46VProcessor"),
    }[family]
    return getattr(transformers, both)(
        image_processor=getattr(transformers, image)(**numbers),
        tokenizer=tokenizer,
        video_processor=getattr(transformers, video)(**numbers, do_sample_frames=False),
    )


def processed(family: str, folder: Path, prompt: str, items: list[MediaItem]) -> Any:
    """transformers' ids for a prompt, given black pixels of the items' sizes."""
    images = [Image.new("RGB", item.resized[::-1]) for item in items if item.ref.kind == "image"]
    videos = [item for item in items if item.ref.kind == "video"]
    metadata = [
        {
            "fps": item.ref.header.fps,
            "total_num_frames": item.ref.header.frame_count,
            "frames_indices": list(item.frame_indices),
            "duration": item.ref.header.duration,
        }
        for item in videos
    ]
    extra: dict[str, Any] = {}
    if images:
        extra["images"] = images
    if videos:
        frames = [np.zeros((len(item.frame_indices), 3, *item.resized), dtype=np.uint8) for item in videos]
        extra |= {"videos": frames, "video_metadata": metadata, "do_sample_frames": False}
    return processor(family, folder)(text=[prompt], return_tensors="pt", **extra)


def positions(family: str, inputs: Any, tokens_per_second: int = 2) -> tuple[NDArray[np.int64], int]:
    """get_rope_index on a processor's output. It reads two numbers of the config and no weight."""
    model = _MODELS[family]
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=tokens_per_second)
    stand_in = SimpleNamespace(
        config=SimpleNamespace(vision_config=vision),
        get_vision_position_ids=functools.partial(model.get_vision_position_ids, None),
    )
    arguments = {
        key: torch.as_tensor(inputs[key])
        for key in ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        if key in inputs
    }
    found, delta = model.get_rope_index(stand_in, attention_mask=torch.ones_like(arguments["input_ids"]), **arguments)
    return found[:, 0].numpy(), int(delta)
