"""A tiny checkpoint, as published ones are named, every parameter random."""

from pathlib import Path

import pytest
import torch

from sightline.models.create import create_checkpoint


@pytest.fixture(scope="session")
def phi4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "phi4-multimodal"
    create_checkpoint(folder, "phi4-multimodal", "tiny", dtype=torch.float32, seed=7)
    return folder
