"""Patches of many items at once: from pixels that the host has decoded, and from files that the GPU decodes."""

from collections.abc import Sequence

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
                    spec = self.processor.image if item.ref.kind == "image" else self.processor.video
                    assert spec is not None, "a video came to a model that takes none"
                    made[index] = make_patches(frames, item, spec, self._device, self._dtype, self._compact)
        return made
