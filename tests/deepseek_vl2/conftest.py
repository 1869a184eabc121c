"""Tiny checkpoints of each kind: plain attention, compressed keys and values, and these with experts chosen by sigmoids."""

from pathlib import Path

import pytest
import torch

from sightline.models.create import create_checkpoint

SIZES = ("tiny", "tiny-mla", "tiny-mla-sigmoid")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for seed, size in enumerate(SIZES):
        folders[size] = tmp_path_factory.mktemp("deepseek_vl2") / size
        create_checkpoint(folders[size], "deepseek-vl2", size, dtype=torch.float32, seed=seed)
    return folders
