"""A tiny checkpoint, as published ones are named, every parameter random."""

import json
from pathlib import Path

import pytest
import torch

from sightline.models.create import SHARD_BYTES, _write_weights, create_checkpoint
from sightline.models.registry import family_named, read_model_spec


@pytest.fixture(scope="session")
def phi4_448(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With crops as large as published ones, and a narrow tower."""
    folder = tmp_path_factory.mktemp("checkpoints") / "phi4-448"
    create_checkpoint(folder, "phi4-multimodal", "tiny", dtype=torch.float32, weights=False)
    config = json.loads((folder / "config.json").read_text())
    config["embd_layer"]["image_embd_layer"]["crop_size"] = config["vision_config"]["image_size"] = 448
    (folder / "config.json").write_text(json.dumps(config))
    table = family_named("phi4-multimodal").weight_table(read_model_spec(folder))
    _write_weights(folder, table, torch.float32, 3, SHARD_BYTES)
    return folder


@pytest.fixture(scope="session")
def phi4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "phi4-multimodal"
    create_checkpoint(folder, "phi4-multimodal", "tiny", dtype=torch.float32, seed=7)
    return folder
