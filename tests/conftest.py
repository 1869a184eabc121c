"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
import torch

FAMILIES = ("qwen3-vl", "qwen2.5-vl", "glm-4.1v")


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny checkpoint per family in float32, every parameter random, as `sightline model new` writes it."""
    from sightline.models.create import create_checkpoint

    folders = {}
    for seed, family in enumerate(FAMILIES):
        folders[family] = tmp_path_factory.mktemp("checkpoints") / family
        create_checkpoint(folders[family], family, "tiny", dtype=torch.float32, seed=seed)
    return folders
