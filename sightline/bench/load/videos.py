"""Clips to send: a window that wanders over a photo-like picture, or a recording of a drawn screen."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.bench.load.body import Medium
from sightline.bench.load.images import parse_resolution, photo
from sightline.bench.load.screens import screen
from sightline.errors import ConfigError

VideoContent = Literal["photo", "screen"]
_BURST = 12  # frames that change one after another, as while somebody scrolls; then nothing moves for a while


@dataclass(frozen=True)
class VideoKind:
    resolution: str = "360p"
    frames: int = 32
    fps: int = 8
    content: VideoContent = "photo"
    repeat: float = 0.0  # share of frames that are equal to the one before, also when they are decoded

    def __post_init__(self) -> None:
        for name, value in (("frames", self.frames), ("fps", self.fps)):
            if value < 1:
                raise ConfigError(f"The video's {name} is {value}, but must be at least 1.")
        if any(side % 2 or side < 16 for side in parse_resolution(self.resolution)):
            raise ConfigError(f"The video's resolution {self.resolution!r} must have even sides of at least 16.")
        if not 0.0 <= self.repeat <= 1.0:
            raise ConfigError(f"The video's share of repeated frames is {self.repeat:g}, but must be from 0 to 1.")


def make_video(kind: VideoKind, seed: Sequence[int]) -> Medium:
    """An MP4 with H.264, another one for every seed. Recordings lose nothing: else frames that are equal decode to others."""
    import av

    has_x264 = "libx264" in av.codecs_available
    exact = bool(kind.repeat) or kind.content == "screen"
    if exact and not has_x264:
        raise ConfigError("Recordings and videos with repeated frames need a PyAV with libx264, which this one has not.")
    random = np.random.default_rng(seed)
    width, height = parse_resolution(kind.resolution)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        options = {"qp": "0", "preset": "fast"} if exact else {}
        stream = container.add_stream("libx264" if has_x264 else "mpeg4", rate=kind.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for pixels in _frames(kind, random, width, height):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return Medium.of(buffer.getvalue(), "video/mp4")


def _frames(kind: VideoKind, random: np.random.Generator, width: int, height: int) -> Iterator[NDArray[np.uint8]]:
    changes = [True] * kind.frames if not kind.repeat else when_changed(random, kind.frames, kind.repeat)
    drawn = (_wandering if kind.content == "photo" else _recorded)(random, width, height, sum(changes))
    for changed in changes:
        if changed:
            pixels = next(drawn)
        yield pixels


def when_changed(random: np.random.Generator, frames: int, repeat: float) -> list[bool]:
    """Of each frame whether it is another than the one before it: the first one is. The others come in bursts."""
    count = max(1, round(frames * (1 - repeat))) - 1
    bursts = max(1, -(-count // _BURST))
    still = np.sort(random.integers(0, frames - count, bursts))  # how many frames that are equal lie before each burst
    changes = [True]
    for number, before in enumerate(still):
        changes += [False] * (int(before) - changes.count(False))
        changes += [True] * (count * (number + 1) // bursts - count * number // bursts)
    return changes + [False] * (frames - len(changes))


def _wandering(random: np.random.Generator, width: int, height: int, count: int) -> Iterator[NDArray[np.uint8]]:
    room = 64  # how far the window wanders, in pixels
    scene = photo(random, width + room, height + room)
    steps = random.integers(-4, 5, (count, 2)).cumsum(axis=0)
    places = np.abs((steps + room // 2) % (2 * room) - room)  # reflected at the edges
    for left, top in places:
        yield np.ascontiguousarray(scene[top : top + height, left : left + width])


def _recorded(random: np.random.Generator, width: int, height: int, count: int) -> Iterator[NDArray[np.uint8]]:
    """A screen of which a part is drawn anew each time."""
    pixels = screen(random, width, height)
    for _ in range(count):
        yield pixels
        pixels = pixels.copy()
        wide, high = max(width // 3, 1), max(height // 4, 1)
        left, top = random.integers(0, (width - wide + 1, height - high + 1))
        pixels[top : top + high, left : left + wide] = screen(random, wide, high)
