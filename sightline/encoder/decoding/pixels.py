"""What decoding an item gives, and how far it is."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from sightline.types import MediaItem


class PixelState(Enum):
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Pixels:
    # [frames, height, width, 3] in display orientation, one frame for a still; of the source's size, or that of its only view
    frames: NDArray[np.uint8]
    seconds: float  # what decoding took
    # Of a video with repeated frames (repeats.py): for each temporal patch, which of those in `frames` it equals.
    groups: tuple[int, ...] = ()

    @property
    def held_bytes(self) -> int:
        """With those of frames that were dropped in place."""
        base = self.frames.base
        return max(self.frames.nbytes, base.nbytes if isinstance(base, np.ndarray) else 0)


def is_shrunk(item: MediaItem) -> bool:
    """Whether the model sees fewer pixels of a frame than the source has: a helper process resizes it then.

    Several views are made of the source's pixels, each by itself, and one by another filter than a helper's is, too.
    """
    if len(item.views) > 1 or item.views[0].resample != "bicubic":
        return False
    height, width = item.resized
    return height * width < item.ref.header.height * item.ref.header.width


def result_shape(item: MediaItem) -> tuple[int, int, int, int]:
    """[frames, height, width, 3] of what a helper process gives back."""
    header = item.ref.header
    height, width = item.resized if is_shrunk(item) else (header.height, header.width)
    return max(len(item.frame_indices), 1), height, width, 3
