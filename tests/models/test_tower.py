"""What a tower does to its weights for a GPU leaves its results as they were."""

from pathlib import Path

import pytest
import torch

from sightline.models.families import read_model_spec
from sightline.models.load import load_model
from sightline.vision.tower_batch import make_tower_batch


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v"])
def test_padded_heads_change_nothing(tiny_checkpoints: dict[str, Path], family: str) -> None:
    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    tower = load_model(spec, folder, torch.device("cpu"), torch.float32, 64).vision
    vision = spec.vision
    torch.manual_seed(0)
    patches = torch.randn(48, vision.in_channels * vision.patch_size**2)
    batch = make_tower_batch([patches[:16], patches[16:]], [(1, 4, 4), (1, 4, 8)], vision, torch.device("cpu"))
    with torch.inference_mode():
        expected = tower(batch)
        for block in tower.blocks:
            block.pad_heads(vision.head_dim + 8)
        torch.testing.assert_close(tower(batch), expected, atol=1e-5, rtol=1e-5)
