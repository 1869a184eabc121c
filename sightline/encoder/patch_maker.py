"""Patches of many items at once: from pixels that the host has decoded, and from files that the GPU decodes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.encoder.gpu_decode import GpuDecoder
from sightline.encoder.patches import make_patches, make_patches_of_files
from sightline.spec import ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaItem

Pixels = NDArray[np.uint8]  # [frames, height, width, 3]


class PatchMaker:
    def __init__(
        self,
        processor: ProcessorSpec,
        device: torch.device,
        dtype: torch.dtype,
        compact: bool,
        gpu: GpuDecoder | None = None,
    ) -> None:
        self.processor, self._device, self._dtype, self._compact = processor, device, dtype, compact
        self.gpu = gpu

    @property
    def itemsize(self) -> int:
        return self._dtype.itemsize

    def make(self, items: Sequence[MediaItem], pixels: Sequence[Pixels | None], clock: StageClock) -> list[torch.Tensor | None]:
        """[patches, features] of each item; without pixels it is a file for the GPU, and None if the GPU cannot decode it."""
        made: list[torch.Tensor | None] = [None] * len(items)
        files = [index for index, frames in enumerate(pixels) if frames is None]
        if files:
            assert self.gpu is not None, "an item came without pixels, and there is no decoder on the GPU"
            some = [items[index] for index in files]
            found = make_patches_of_files(some, self.processor.image, self.gpu, self._dtype, self._compact, clock)
            for index, patches in zip(files, found, strict=True):
                made[index] = patches
        with clock.stage("preprocess"):
            for index, (item, frames) in enumerate(zip(items, pixels, strict=True)):
                if frames is not None:
                    made[index] = self._make_one(item, frames)
        return made

    def make_frames(
        self, items: Sequence[MediaItem], pixels: Sequence[Pixels | None], wanted: Sequence[Sequence[bool]], clock: StageClock
    ) -> list[list[torch.Tensor | None]]:
        """[patches, features] of each frame of each item's grids in turn; None of those that are not `wanted`.

        Of a still nothing is made if none of it is wanted; of a video only the wanted frames are put on the device.
        """
        found: list[list[torch.Tensor | None]] = []
        with clock.stage("preprocess"):
            for item, frames, of_item in zip(items, pixels, wanted, strict=True):
                assert frames is not None, "ranks take pixels: files that the GPU decodes are for one rank alone"
                found.append(self._make_wanted(item, frames, of_item))
        return found

    def _make_wanted(self, item: MediaItem, pixels: Pixels, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
        if not any(wanted):
            return [None] * len(wanted)
        if item.ref.kind == "video" and len(item.grids) == len(item.views) == 1:
            (_, height, width), together = item.grid, len(pixels) // len(wanted)
            some = pixels.reshape(len(wanted), together, *pixels.shape[1:])[np.flatnonzero(wanted)]
            fewer = replace(item, grids=((len(some), height, width),))
            parts = iter(self._make_one(fewer, some.reshape(-1, *pixels.shape[1:])).split(height * width))
            return [next(parts) if is_wanted else None for is_wanted in wanted]
        sizes = [height * width for count, height, width in item.grids for _ in range(count)]
        all_parts = self._make_one(item, pixels).split(sizes)
        return [part if is_wanted else None for part, is_wanted in zip(all_parts, wanted, strict=True)]

    def _make_one(self, item: MediaItem, pixels: Pixels) -> torch.Tensor:
        spec = self.processor.image if item.ref.kind == "image" else self.processor.video
        assert spec is not None, "a video came to a model that takes none"
        return make_patches(pixels, item, spec, self._device, self._dtype, self._compact)
