"""Checkpoints of families that are no part of the package, each found by the path of its folder."""

from pathlib import Path

import pytest
import torch

from engine import harness
from sightline.models.create import create_checkpoint
from sightline.models.registry import add_family_modules
from sightline.worker.readout import Readout

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def out_of_tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the name of the folder that has the family."""
    folders = {}
    for seed, name in enumerate(("recurrent", "experts")):
        add_family_modules([str(HERE / name)])
        folders[name] = tmp_path_factory.mktemp("out_of_tree") / name
        create_checkpoint(folders[name], f"{name}-vl", "tiny", dtype=torch.float32, seed=seed)
    return folders


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Step by step; or launched before the last step is read, as if the device were never done so soon."""
    monkeypatch.setattr(harness, "OVERLAP", request.param)
    if request.param:
        monkeypatch.setattr(Readout, "ready", property(lambda _: False))
    return bool(request.param)
