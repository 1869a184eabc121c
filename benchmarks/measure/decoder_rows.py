"""What another decoder does to the rows that the vision tower makes, beside what computing in bfloat16 does to them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.measure.pixels import PixelBench
from benchmarks.measure.tower import random_tower
from sightline.config import Config
from sightline.models.files import read_model_files
from sightline.models.load import load_model
from sightline.models.patch_tower import PatchTower
from sightline.timing import StageClock
from sightline.types import MediaItem


@dataclass(frozen=True)
class RowError:
    """Relative L2 distances between rows of the same files."""

    files: str
    subsampling: str
    decoder: str
    decoding: float  # this decoder's pixels against Pillow's, both computed in float32
    bfloat16: float  # Pillow's pixels, computed in bfloat16 against float32


class RowBench:
    """A tower in bfloat16, and the same weights in float32."""

    def __init__(self, config: Config, pixels: PixelBench) -> None:
        files = read_model_files(config.model, config.media)
        _ = files.spec.patch_tower  # a family with a tower of its own is refused before anything is loaded
        self._pixels, device = pixels, pixels.device
        if config.model.load_format != "safetensors":
            self._short = random_tower(files.spec, device, torch.bfloat16)
        else:
            tower = load_model(files.spec, files.folder, device, torch.bfloat16, files.max_model_len).vision
            assert isinstance(tower, PatchTower)
            self._short = tower
        self._long = copy.deepcopy(self._short).float()
        self._long.patch_embed.prepare()  # its folded weights are no parameter

    def measure(self, name: str, subsampling: str, items: Sequence[MediaItem], decoder: str) -> RowError:
        exact = self._rows(self._long, items, "cpu")
        return RowError(
            files=name,
            subsampling=subsampling,
            decoder=decoder,
            decoding=_distance(self._rows(self._long, items, decoder), exact),
            bfloat16=_distance(self._rows(self._short, items, "cpu"), exact),
        )

    @torch.inference_mode()
    def _rows(self, tower: PatchTower, items: Sequence[MediaItem], decoder: str) -> torch.Tensor:
        patches = self._pixels.patches(items, decoder, tower.patch_embed.weight.dtype, StageClock())
        batch = tower.make_batch(patches, [item.grid for item in items])
        rows: torch.Tensor = tower(batch)
        return rows


def _distance(rows: torch.Tensor, exact: torch.Tensor) -> float:
    return float((rows.float() - exact.float()).norm() / exact.float().norm())
