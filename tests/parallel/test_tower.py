"""The tower over several ranks makes the rows that one makes, and sends as many bytes as the formulas say."""

import math
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel.checkpoints import HEADS, many_heads
from parallel.ranks import on_ranks
from sightline.config import MediaConfig, ModelConfig
from sightline.encoder.vision_parallel import VisionRanks
from sightline.models.files import read_model_files
from sightline.models.load import load_model
from sightline.models.model import VisionLanguageModel
from sightline.models.patch_tower import PatchTower
from sightline.models.sharding import shard_model
from sightline.models.tower import Tower
from sightline.parallel.costs import LinkCosts, TowerCosts, assign
from sightline.parallel.group import Group
from sightline.spec import PatchTowerSpec
from sightline.types import Grid

CPU = torch.device("cpu")
LINK = LinkCosts(flops=1e9, bytes_per_s=1e9, latency_s=1e-6)
# For 2 x 2 patches of a row.
MIXES: list[list[Grid]] = [
    [(1, 8, 12)],
    [(1, 4, 4), (1, 16, 20), (3, 4, 8), (1, 2, 2)],
    [(2, 6, 10), (1, 8, 8), (1, 10, 4), (1, 4, 4), (5, 2, 4)],
]


def mixes(tower: Tower) -> list[list[Grid]]:
    assert isinstance(tower, PatchTower)
    scale = tower.spec.merge_size // 2
    return [[(count, high * scale, wide * scale) for count, high, wide in grids] for grids in MIXES]


def loaded(folder: Path, group: Group | None = None, split: bool = False) -> VisionLanguageModel:
    files = read_model_files(ModelConfig(model=str(folder)), MediaConfig())
    shard = None if group is None else shard_model(files.spec, group.rank, group.size, split)
    model = load_model(files.spec, folder, CPU, torch.float32, 64, shard=shard)
    if group is not None and shard is not None:
        model.use_group(group, group, shard.vocabulary)
    return model


def views_of(grids: list[Grid], width: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(math.prod(grid), width, generator=generator) for grid in grids]


def on_one_rank(group: Group, folder: Path, mode: Any) -> tuple[list[np.ndarray], list[Counter[str]]]:
    """Rows of each mix, and what was sent for it."""
    model = loaded(folder, group, split=mode == "tensor")
    tower = model.vision
    assert isinstance(tower, PatchTower)

    def run(patches: Any, grids: Any) -> torch.Tensor:
        return model.encode(tower.make_batch(patches, grids))

    def run_together(patches: Any, grids: Any) -> torch.Tensor:
        with tower.together(group):
            return run(patches, grids)

    found, sent = [], []
    for grids in mixes(tower):
        views = views_of(grids, tower.patch_width)
        group.sent.clear()
        if mode == "tensor":
            found.append(run(views, grids).numpy())
        else:
            ranks = VisionRanks(group, mode, tower, TowerCosts.of(tower.spec), LINK)
            found.append(ranks.encode(ranks.share(views, grids), run, run_together).numpy())
        sent.append(Counter(group.sent))
    return found, sent


IN_CI = [("qwen3-vl", 2, "tensor"), ("qwen2.5-vl", 3, "auto")]
OTHERS = [case for case in product(HEADS, (2, 3, 4), ("data", "sequence", "tensor", "auto")) if case not in IN_CI]


@pytest.mark.parametrize(
    ("family", "size", "mode"), [*IN_CI, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_rows_are_those_of_one_rank(tmp_path: Path, family: str, size: int, mode: str) -> None:
    """Red when a patch, a head or a row goes to the wrong place, whatever is uneven: heads, patches, images."""
    folder = many_heads(tmp_path / "model", family)
    alone = loaded(folder)
    results = on_ranks(size, on_one_rank, folder, mode)
    for index, grids in enumerate(mixes(alone.vision)):
        right = alone.encode(alone.vision.make_batch(views_of(grids, alone.vision.patch_width), grids))
        for found, _ in results:
            assert found[index].shape == right.shape
            assert (torch.from_numpy(found[index]) - right).abs().max() <= 1e-4 * right.abs().max(), (grids, mode)


def test_bytes_are_those_of_the_formulas(tiny_checkpoints: dict[str, Path]) -> None:
    """A clip of equal frames, which ranks share evenly. Red when something is sent twice, or not counted."""
    folder, size = tiny_checkpoints["qwen3-vl"], 2
    spec = read_model_files(ModelConfig(model=str(folder)), MediaConfig()).spec.vision
    assert isinstance(spec, PatchTowerSpec)
    costs = TowerCosts.of(spec)
    patches = math.prod(MIXES[0][0])
    for mode, kind in (("sequence", "all_to_all"), ("tensor", "all_reduce")):
        results = on_ranks(size, on_one_rank, folder, mode)
        sent = sum(counts[0][kind] for _, counts in results) / size
        assert sent == pytest.approx(costs.sent_bytes(mode, patches, size, 4), rel=0.01)
    sequence, tensor = (costs.sent_bytes(mode, patches, size, 4) for mode in ("sequence", "tensor"))
    assert tensor == pytest.approx(size * sequence), "Ulysses sends as many times less as there are ranks"


def test_auto_takes_the_faster_of_both() -> None:
    """Many small images go to ranks as they are, a single large one is shared, and a large one beside small ones, too."""
    costs = TowerCosts(depth=27, hidden=1152, heads=16, linear_flops=27 * 2 * 15_000_000, attention_flops=27 * 4 * 1152)
    link = LinkCosts(flops=5e14, bytes_per_s=3e11, latency_s=2e-5)

    def owners(frames: list[int]) -> tuple[int, ...]:
        return assign(frames, "auto", 4, costs, 2, link).ranks

    assert -1 not in owners([1296] * 32)
    assert owners([14400]) == (-1,)
    mixed = owners([14400, *[1296] * 8])
    assert mixed[0] == -1 and -1 not in mixed[1:]
    for frames in ([14400] * 3, [1296] * 5, [8160, 3520, 1296]):
        both = [assign(frames, mode, 4, costs, 2, link).seconds for mode in ("data", "sequence")]
        assert assign(frames, "auto", 4, costs, 2, link).seconds <= min(both)
