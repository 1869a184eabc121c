"""Patches of an item straight from its file: decoded here, then as a worker makes them."""

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.encoder import patches
from sightline.media.decode import decode_image, decode_video
from sightline.spec import PatchSpec
from sightline.types import MediaItem


def make_patches(
    item: MediaItem, spec: PatchSpec, device: torch.device, dtype: torch.dtype, compact: bool = True
) -> torch.Tensor:
    return patches.make_patches(decoded(item), item, spec, device, dtype, compact)


def decoded(item: MediaItem) -> NDArray[np.uint8]:
    """[frames, height, width, 3]"""
    still = item.ref.kind == "image"
    return decode_image(item.ref)[None] if still else decode_video(item.ref, item.frame_indices)
