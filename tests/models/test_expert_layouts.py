"""The layouts in which a checkpoint may store experts: each is seen for what it is, and gives the same model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.fp8_checkpoints import load
from oracle import oracle
from sightline.errors import CheckpointError, ConfigError
from sightline.models.create import create_checkpoint
from sightline.models.registry import family_named, read_model_spec
from sightline.spec import ExpertLayout

Tensors = dict[str, torch.Tensor]


def _apart(tensors: Tensors) -> Tensors:
    """Stacked and transposed matrices as a tensor for each expert."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for index, matrix in enumerate(tensor.mT):
                for half, rows in zip(("gate", "up"), matrix.chunk(2), strict=True):
                    found[name.replace("gate_up_proj", f"{index}.{half}_proj.weight")] = rows
        elif name.endswith("experts.down_proj"):
            for index, matrix in enumerate(tensor.mT):
                found[name.replace("down_proj", f"{index}.down_proj.weight")] = matrix
        else:
            found[name] = tensor
    return found


def _turned(tensors: Tensors) -> Tensors:
    return {name: tensor.mT if ".experts." in name else tensor for name, tensor in tensors.items()}


def rewritten(source: Path, folder: Path, change: Callable[[Tensors], Tensors], version: str | None) -> Path:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = change(load_file(source / "model.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if version is not None:
        config["transformers_version"] = version
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("change", "version", "layout"),
    [(_apart, None, "per_expert"), (_turned, "5.17.0", "fused"), (lambda tensors: tensors, "4.57.0.dev0", None)],
)
def test_every_layout_gives_the_same_model(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, change: Callable[[Tensors], Tensors], version: str | None, layout: str
) -> None:
    """The published one, transposed, is what is written without a word. Red when a layout is not seen, or read as another."""
    published = load(tiny_checkpoints["qwen3-vl-moe"]).state_dict()
    folder = rewritten(tiny_checkpoints["qwen3-vl-moe"], tmp_path / "other", change, version)
    assert read_model_spec(folder).expert_layout == layout
    found = load(folder).state_dict()
    assert found.keys() == published.keys() and all(torch.equal(value, published[name]) for name, value in found.items())


def test_what_transformers_saves(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """It has read transposed matrices and writes them untransposed, of the same model."""
    model = oracle(tiny_checkpoints["qwen3-vl-moe"], "qwen3-vl-moe").model
    shutil.copytree(tiny_checkpoints["qwen3-vl-moe"], tmp_path / "saved", ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(tmp_path / "saved")
    assert read_model_spec(tmp_path / "saved").expert_layout == "fused"
    published, found = (load(folder).state_dict() for folder in (tiny_checkpoints["qwen3-vl-moe"], tmp_path / "saved"))
    assert all(torch.equal(value, published[name]) for name, value in found.items())


def test_matrices_of_another_layout_are_refused(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Red when shapes are taken for a hint."""
    folder = rewritten(tiny_checkpoints["qwen3-vl-moe"], tmp_path / "other", _turned, "4.57.0")
    with pytest.raises(
        CheckpointError, match=r"experts.gate_up_proj' has the shape \[12, 192, 128\], expected \[12, 128, 192\]"
    ):
        load(folder)


@pytest.mark.parametrize("family", ["qwen3-vl-moe", "glm-4.6v"])
def test_model_new_writes_each_layout(tmp_path: Path, family: str) -> None:
    for layout in family_named(family).expert_layouts:
        create_checkpoint(tmp_path / layout, family, "tiny", expert_layout=layout)
        spec = read_model_spec(tmp_path / layout)
        assert (spec.expert_layout or family_named(family).expert_layouts[0]) == layout
        load(tmp_path / layout)
        names = load_file(tmp_path / layout / "model.safetensors")
        assert any(".experts.0." in name for name in names) == (layout == "per_expert")


@pytest.mark.parametrize(("family", "layout"), [("glm-4.6v", "fused_transposed"), ("qwen3-vl", "fused")])
def test_layouts_that_a_family_has_not_are_refused(tmp_path: Path, family: str, layout: ExpertLayout) -> None:
    with pytest.raises(ConfigError, match=layout):
        create_checkpoint(tmp_path / "model", family, "tiny", expert_layout=layout)
