"""What a tower does to its weights for a GPU leaves its results as they were; what it keeps away from."""

from pathlib import Path

import pytest
import torch

from sightline.models.families import read_model_spec
from sightline.models.load import load_model
from sightline.ops.dispatch import Twin
from sightline.ops.linear import linear
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


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v"])
def test_a_tower_leaves_products_of_few_rows_to_the_decoder(
    tiny_checkpoints: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernel has one scratch memory, for one stream at a time (ops/triton/few_rows.py), and towers run beside decoding.
    Red when a tower calls that op, as the decoder's layers do."""

    def used(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise AssertionError("the tower uses scratch memory that a step beside it may be using")

    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    tower = load_model(spec, folder, torch.device("cpu"), torch.float32, 64).vision
    monkeypatch.setattr(linear, "twins", [Twin("few rows", used, lambda *_: True, True)])
    patches = torch.randn(16, spec.vision.in_channels * spec.vision.patch_size**2)
    batch = make_tower_batch([patches], [(1, 4, 4)], spec.vision, torch.device("cpu"))
    with torch.inference_mode():
        assert tower(batch).isfinite().all()
        with pytest.raises(AssertionError, match="scratch memory"):
            linear(torch.ones(1, 4), torch.ones(2, 4), None)
