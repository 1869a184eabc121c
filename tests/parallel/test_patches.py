"""A rank makes the patches of what it runs, and of nothing else."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clips import make_clip
from engine.harness import loaded, small_picture
from parallel.ranks import on_ranks
from parallel.test_tower import LINK
from parallel.test_tower import loaded as model_of
from sightline.config import MediaConfig, ModelConfig
from sightline.encoder import patches as patches_module
from sightline.encoder.patch_maker import PatchMaker
from sightline.encoder.vision_parallel import VisionRanks, frames_of
from sightline.media.decode import decode_image, decode_video
from sightline.models.files import read_model_files
from sightline.models.patch_tower import PatchTower
from sightline.parallel.costs import TowerCosts
from sightline.parallel.group import Group
from sightline.timing import StageClock
from sightline.types import MediaItem

CPU = torch.device("cpu")


def items_of(folder: Path) -> tuple[list[MediaItem], list[np.ndarray]]:
    """Pictures of several sizes and a clip, with their pixels."""
    pictures = [small_picture(seed, width, 64) for seed, width in ((1, 96), (2, 320), (3, 64), (4, 160))]
    content: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in pictures]
    content.insert(2, {"type": "video", "video": make_clip(10)})
    items = list(loaded(folder).prompts.chat([{"role": "user", "content": content}]).items)
    return items, [decode_video(i.ref, i.frame_indices) if i.ref.kind == "video" else decode_image(i.ref)[None] for i in items]


def on_one_rank(
    group: Group, folder: Path, items: Sequence[MediaItem], pixels: Sequence[np.ndarray], mode: Any
) -> tuple[int, int, np.ndarray]:
    """Patches that were made, those that it runs, and the rows."""
    model = model_of(folder, group)
    tower = model.vision
    assert isinstance(tower, PatchTower)
    made = 0
    original = patches_module.patchify

    def counted(*arguments: Any) -> torch.Tensor:
        nonlocal made
        found = original(*arguments)
        made += len(found)
        return found

    patches_module.patchify = counted
    processor = read_model_files(ModelConfig(model=str(folder)), MediaConfig()).processor
    maker = PatchMaker(processor, CPU, torch.float32, True)
    ranks = VisionRanks(group, mode, tower, TowerCosts.of(tower.spec), LINK)
    work = ranks.prepare(items, pixels, maker, StageClock())
    owned = sum(math.prod(work.grids[index]) for index in work.assignment.of_rank(group.rank))

    def run(patches: Any, grids: Any) -> torch.Tensor:
        return model.encode(tower.make_batch(patches, grids))

    def run_together(patches: Any, grids: Any) -> torch.Tensor:
        with tower.together(group):
            return run(patches, grids)

    return made, owned, ranks.encode(work, run, run_together).numpy()


@pytest.mark.parametrize(("family", "size", "mode"), [("qwen3-vl", 3, "data"), ("qwen2.5-vl", 2, "sequence")])
def test_patches_that_are_made(tiny_checkpoints: dict[str, Path], family: str, size: int, mode: str) -> None:
    """Under `data` each patch is made by one rank, frames of a clip by several. Red when a rank makes those of others, or the
    frames of a clip get mixed up."""
    folder = tiny_checkpoints[family]
    items, pixels = items_of(folder)
    results = on_ranks(size, on_one_rank, folder, items, pixels, mode)
    total = sum(item.patches for item in items)
    if mode == "data":
        assert sum(made for made, _, _ in results) == total
        assert all(made == owned > 0 for made, owned, _ in results)
    else:
        assert all(made == total for made, _, _ in results)
    alone = model_of(folder)
    processor = read_model_files(ModelConfig(model=str(folder)), MediaConfig()).processor
    whole = PatchMaker(processor, CPU, torch.float32, True).make(items, pixels, StageClock())
    views = [view for view in whole if view is not None]
    right = alone.encode(alone.vision.make_batch(views, [item.grid for item in items]))
    for _, _, rows in results:
        assert (torch.from_numpy(rows) - right).abs().max() <= 1e-4 * right.abs().max()


def test_frames_of_grids() -> None:
    assert frames_of([(2, 4, 6), (1, 8, 8)]) == ((1, 4, 6), (1, 4, 6), (1, 8, 8))
