"""Which frames of a video a model sees, and when they are shown. Each family has its own rule; all are transformers'."""

import math
from dataclasses import dataclass

import numpy as np

from sightline.spec import VideoSpec
from sightline.types import MediaItem, VideoHeader


@dataclass(frozen=True)
class FrameSample:
    """Sampled frames, the last repeated until their number is a multiple of the temporal patch size."""

    indices: tuple[int, ...]
    times: tuple[float, ...]  # seconds: index / frames per second of the source
    count: int  # indices before that repetition; budgets of pixels are reckoned with it


def sample_frames(spec: VideoSpec, header: VideoHeader) -> FrameSample:
    step = spec.temporal_patch_size
    if spec.style == "qwen3":
        indices = _qwen3(spec, header)
    elif spec.style == "qwen2_5":
        indices = _qwen2_5(spec, header)
    else:
        indices = _padded(_glm(spec, header), step)  # transformers pads GLM's while sampling, the others' later
    padded = _padded(indices, step)
    return FrameSample(tuple(padded), tuple(index / header.fps for index in padded), len(indices))


def _padded(indices: list[int], multiple: int) -> list[int]:
    return indices + indices[-1:] * (-len(indices) % multiple)


def _qwen3(spec: VideoSpec, header: VideoHeader) -> list[int]:
    """Evenly from the first to the last frame, both included."""
    total = header.frame_count
    count = int(total / header.fps * spec.fps)
    count = min(max(count, spec.min_frames), spec.max_frames, total)
    return [int(index) for index in np.linspace(0, total - 1, count).round()]


def _qwen2_5(spec: VideoSpec, header: VideoHeader) -> list[int]:
    """An even number of frames, each at the start of an equal share of the video.

    transformers takes int(arange(0, total, total / count)) in float32, which now and then has one index too many and, in
    videos of many thousand frames, indices one too high. Whole numbers give what it means. It fails on a video of one frame; we
    take that frame.
    """
    total, step = header.frame_count, spec.temporal_patch_size
    wanted = min(max(total / header.fps * spec.fps, spec.min_frames), spec.max_frames, total)
    count = math.floor(wanted / step) * step
    if count == 0:
        return list(range(min(total, step)))
    return [place * total // count for place in range(count)]


def _glm(spec: VideoSpec, header: VideoHeader) -> list[int]:
    """At a fixed rate up to max_seconds; longer videos get as many frames as one of that length. No frame twice."""
    last = header.frame_count - 1
    if header.duration <= spec.max_seconds:
        count = max(math.floor(header.duration * spec.fps), 1)
        indices = [min(last, math.ceil(place * header.fps / spec.fps)) for place in range(count)]
    else:
        count = int(spec.max_seconds * spec.fps)
        if count > last:
            indices = list(range(last + 1))
        else:
            indices = [min(last, math.ceil(seconds * header.fps)) for seconds in np.linspace(0, header.duration, count)]
    return list(dict.fromkeys(indices))


def seconds_per_group(item: MediaItem) -> float:
    """Seconds of video that one temporal patch stands for: the clock of Qwen2.5's time positions."""
    header = item.ref.header
    assert isinstance(header, VideoHeader)
    frames_per_group = len(item.frame_indices) // item.grid[0]
    sampled_fps = len(item.frame_indices) / header.frame_count * header.fps
    return frames_per_group / sampled_fps
