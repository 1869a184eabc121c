"""Clips to send: a window that wanders over a photo-like picture."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sightline.bench.load.body import Medium
from sightline.bench.load.images import parse_resolution, photo
from sightline.errors import ConfigError


@dataclass(frozen=True)
class VideoKind:
    resolution: str = "360p"
    frames: int = 32
    fps: int = 8

    def __post_init__(self) -> None:
        for name, value in (("frames", self.frames), ("fps", self.fps)):
            if value < 1:
                raise ConfigError(f"The video's {name} is {value}, but must be at least 1.")
        if any(side % 2 or side < 16 for side in parse_resolution(self.resolution)):
            raise ConfigError(f"The video's resolution {self.resolution!r} must have even sides of at least 16.")


def make_video(kind: VideoKind, seed: Sequence[int]) -> Medium:
    """An MP4 with H.264, another one for every seed."""
    import av

    random = np.random.default_rng(seed)
    width, height = parse_resolution(kind.resolution)
    room = 64  # how far the window wanders, in pixels
    scene = photo(random, width + room, height + room)
    steps = random.integers(-4, 5, (kind.frames, 2)).cumsum(axis=0)
    places = np.abs((steps + room // 2) % (2 * room) - room)  # reflected at the edges
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264" if "libx264" in av.codecs_available else "mpeg4", rate=kind.fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for left, top in places:
            window = np.ascontiguousarray(scene[top : top + height, left : left + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(window, format="rgb24")))
        container.mux(stream.encode(None))
    return Medium.of(buffer.getvalue(), "video/mp4")
