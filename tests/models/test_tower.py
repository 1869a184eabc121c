"""What a tower does to its weights for a GPU leaves its results as they were."""

from pathlib import Path

import pytest
import torch

from sightline.models.families import read_model_spec
from sightline.models.load import load_model
from sightline.vision.tower_batch import make_tower_batch


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v"])
def test_the_layout_for_gpus_changes_nothing(
    tiny_checkpoints: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads in wider places, and biases that norms add. Red when a bias is lost, or added twice, or too early."""
    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    tower = load_model(spec, folder, torch.device("cpu"), torch.float32, 64).vision
    vision = spec.vision
    torch.manual_seed(0)
    patches = torch.randn(48, vision.in_channels * vision.patch_size**2)
    batch = make_tower_batch([patches[:16], patches[16:]], [(1, 4, 4), (1, 4, 8)], vision, torch.device("cpu"))
    monkeypatch.setattr("sightline.models.tower.HEAD_PLACES", vision.head_dim + 8)
    with torch.inference_mode():
        expected = tower(batch)
        tower.lay_out_for_gpu()
        block = tower.blocks[0]
        assert block.qkv.weight.shape[0] == 3 * vision.num_heads * (vision.head_dim + 8) and block.proj.bias is None
        torch.testing.assert_close(tower(batch), expected, atol=1e-5, rtol=1e-5)
