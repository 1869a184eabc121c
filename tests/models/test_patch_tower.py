"""What a tower does to its weights for a GPU leaves its results as they were; what it keeps away from."""

from pathlib import Path

import pytest
import torch

from sightline.models.load import load_model
from sightline.models.registry import read_model_spec
from sightline.ops.dispatch import Implementation
from sightline.ops.linear import SPLIT_SUMS_BYTES, linear
from sightline.ops.workspace import Workspace
from sightline.worker.profile_run import profile_language


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v"])
def test_the_layout_for_gpus_changes_nothing(
    tiny_checkpoints: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads in wider places, and biases that norms add. Red when a bias is lost, or added twice, or too early."""
    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    tower = load_model(spec, folder, torch.device("cpu"), torch.float32, 64).vision
    block = spec.patch_tower.block
    torch.manual_seed(0)
    patches = torch.randn(48, spec.patch_tower.patch_embed.compact_width)
    batch = tower.make_batch([patches[:16], patches[16:]], [(1, 4, 4), (1, 4, 8)])
    monkeypatch.setattr("sightline.models.patch_tower.HEAD_DIM_MULTIPLE", block.head_dim + 8)
    with torch.inference_mode():
        expected = tower(batch)
        tower.lay_out_for_gpu()
        first = tower.blocks[0]
        assert first.qkv.weight.shape[0] == 3 * block.num_heads * (block.head_dim + 8) and first.proj.bias is None
        torch.testing.assert_close(tower(batch), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v"])
def test_a_tower_works_in_no_workspace_of_the_decoder(
    tiny_checkpoints: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace is for one stream at a time, and towers run beside decoding.
    Red when a model gives its tower the workspace, and when it does not give it to its decoder, whose steps would be slower."""
    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    model = load_model(spec, folder, torch.device("cpu"), torch.float32, 64)
    given: list[Workspace | None] = []

    def note(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, workspace: Workspace | None = None
    ) -> torch.Tensor:
        given.append(workspace)
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(linear, "kernels", [Implementation("noted", note, lambda *_, **__: True)])
    workspace = Workspace("split sums", SPLIT_SUMS_BYTES, torch.device("cpu"))
    model.use_workspace(workspace)
    patches = torch.randn(16, spec.patch_tower.patch_embed.compact_width)
    batch = model.vision.make_batch([patches], [(1, 4, 4)])
    with torch.inference_mode():
        assert model.vision(batch).isfinite().all()
    assert given and set(given) == {None}
    given.clear()
    profile_language(model, tokens=3, sequences=3, longest=20, page_size=16, workspace=None)
    assert len(given) == 3 * len(model.varied_layers) + 1 and set(given) == {workspace}  # qkv, out, down; the head
