"""What torchrun's environment says."""

import pytest
import torch

from sightline.config import Config, EngineConfig, ServerConfig
from sightline.errors import ConfigError
from sightline.parallel.group import has_gpu_of_its_own
from sightline.parallel.launch import Launch
from sightline.parallel.rank_info import RankInfo

OF_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_who_a_process_is() -> None:
    assert Launch.read({}) is None
    assert Launch.read({name: value for name, value in OF_TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}) is None
    assert Launch.read(OF_TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}) is None, "alone"
    assert Launch.read(OF_TORCHRUN) == Launch(1, 4, "localhost", 29500)


def test_how_many_ranks() -> None:
    launch = Launch(0, 4, "localhost", 29500)
    for chosen in (1, 4):
        found = launch.applied_to(Config(engine=EngineConfig(tensor_parallel_size=chosen)))
        assert found.engine.tensor_parallel_size == 4
    with pytest.raises(ConfigError, match="tensor_parallel_size is 2, but torchrun started 4 processes"):
        launch.applied_to(Config(engine=EngineConfig(tensor_parallel_size=2)))
    with pytest.raises(ConfigError, match="data_parallel_size is 2, but under torchrun there is one engine"):
        launch.applied_to(Config(server=ServerConfig(data_parallel_size=2)))
    several = Launch.read(OF_TORCHRUN | {"LOCAL_WORLD_SIZE": "2"})
    assert several is not None
    with pytest.raises(ConfigError, match="4 processes on several machines"):
        several.applied_to(Config())


@pytest.mark.parametrize(
    ("name", "rank", "own"), [("cuda", 0, True), ("cuda:1", 1, True), ("cuda:0", 1, False), ("cpu", 0, False)]
)
def test_ranks_with_a_gpu_each_are_seen(monkeypatch: pytest.MonkeyPatch, name: str, rank: int, own: bool) -> None:
    """Red if the first rank, whose GPU has no number in its name, would speak gloo where the others speak NCCL."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert has_gpu_of_its_own(torch.device(name), RankInfo(rank, 2, "/tmp/meeting")) is own
