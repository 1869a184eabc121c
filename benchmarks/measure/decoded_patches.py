"""Bytes to patches as an engine does it, in one call: stills that the GPU takes there, all others in threads."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.encoder.gpu_decode import GpuFiles
from sightline.encoder.patch_maker import PatchMaker
from sightline.media.decode import decode_image
from sightline.timing import StageClock
from sightline.types import MediaItem


def decoded_patches(
    items: Sequence[MediaItem], maker: PatchMaker, threads: ThreadPoolExecutor, clock: StageClock
) -> list[torch.Tensor]:
    """[patches, features] of each still."""
    files = GpuFiles()

    def decode(item: MediaItem) -> tuple[NDArray[np.uint8] | None, float]:
        if maker.gpu is not None and files.takes(item.ref):
            return None, 0.0
        start = time.perf_counter()
        return decode_image(item.ref)[None], time.perf_counter() - start

    found = list((threads.map if len(items) > 1 else map)(decode, items))
    for _, seconds in found:
        clock.add("decode", seconds)
    made = maker.make(items, [pixels for pixels, _ in found], clock)
    for index, patches in enumerate(made):
        if patches is None:  # the GPU cannot
            pixels = decode_image(items[index].ref)[None]
            made[index] = maker.make([items[index]], [pixels], clock)[0]
    return [patches for patches in made if patches is not None]
