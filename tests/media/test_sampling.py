"""Sampled frames against transformers' video processors."""

import dataclasses
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchvision_on_cpu
from media.pictures import video
from sightline.config import MediaConfig
from sightline.media.item import make_video_item
from sightline.media.sampling import sample_frames, seconds_per_group
from sightline.media.source import load_video
from sightline.spec import VideoSpec
from sightline.types import VideoHeader

torchvision_on_cpu.declare_operators()
from transformers import Glm4vVideoProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor  # noqa: E402
from transformers.video_utils import VideoMetadata  # noqa: E402

MEAN = (0.5, 0.5, 0.5)
PROCESSORS = {"qwen3": Qwen3VLVideoProcessor(), "qwen2_5": Qwen2VLVideoProcessor(fps=2), "glm": Glm4vVideoProcessor()}
RATES = st.one_of(
    st.sampled_from([1.0, 2.0, 10.0, 12.5, 15.0, 24.0, 24000 / 1001, 25.0, 30.0, 30000 / 1001, 60.0, 120.0]),
    st.floats(0.1, 240.0, allow_nan=False),
)


def spec(style: str) -> VideoSpec:
    return VideoSpec(style, 4096, 25_165_824, 2.0, 4, 768, 300.0, 16, 2, 2, MEAN, MEAN, 2.0)


def header(total: int, fps: float) -> VideoHeader:
    return VideoHeader("avi", 64, 48, total, fps, total / fps)


def reference(style: str, total: int, fps: float) -> list[int]:
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    return [int(index) for index in PROCESSORS[style].sample_frames(metadata=metadata, fps=2)]


def check_padding(style: str, total: int, fps: float) -> list[int]:
    """What holds for every style; returns the frames before padding."""
    sample = sample_frames(spec(style), header(total, fps))
    assert len(sample.indices) % 2 == 0 and len(sample.indices) - sample.count in (0, 1)
    assert all(index == sample.indices[sample.count - 1] for index in sample.indices[sample.count :])
    assert list(sample.indices) == sorted(sample.indices)
    assert sample.indices[0] == 0 and sample.indices[-1] < total
    assert sample.times == tuple(index / fps for index in sample.indices)
    return list(sample.indices[: sample.count])


# Red if the count is rounded instead of cut, a clamp is missing, or indices are cut instead of rounded.
@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.integers(1, 300), st.integers(1, 100_000)), RATES)
@example(1, 30.0)
@example(5, 30.0)
def test_qwen3(total: int, fps: float) -> None:
    assert check_padding("qwen3", total, fps) == reference("qwen3", total, fps)


# Red if the count is not floored to a multiple of two, or is clamped in another order.
@settings(max_examples=1000, deadline=None)
@given(st.integers(2, 5000), RATES)
@example(3, 30.0)
@example(4999, 2.0)
def test_qwen2_5(total: int, fps: float) -> None:
    expected = reference("qwen2_5", total, fps)
    ours = check_padding("qwen2_5", total, fps)
    if len(expected) % 2:  # float arithmetic gave transformers one index too many
        expected.pop()
    assert ours == expected


# Red if the arithmetic for long videos drifts: transformers' float32 may be one frame too high there, never more.
@settings(max_examples=500, deadline=None)
@given(st.integers(5000, 100_000), RATES)
def test_qwen2_5_in_long_videos(total: int, fps: float) -> None:
    expected = reference("qwen2_5", total, fps)
    ours = check_padding("qwen2_5", total, fps)
    assert len(expected) - len(ours) in (0, 1)
    assert all(theirs - mine in (0, 1) for mine, theirs in zip(ours, expected, strict=False))


# Red if a video of one frame is refused, as transformers does by dividing by zero.
@pytest.mark.parametrize("style", ["qwen3", "qwen2_5", "glm"])
def test_one_frame(style: str) -> None:
    sample = sample_frames(spec(style), header(1, 30.0))
    assert sample.indices == (0, 0) and sample.times == (0.0, 0.0)
    with pytest.raises(ZeroDivisionError):
        reference("qwen2_5", 1, 30.0)


# Red if indices are floored, duplicates stay, the last frame is not repeated to an even count, or long clips keep 2 fps.
@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.integers(1, 300), st.integers(1, 100_000)), RATES)
@example(9000, 30.0)  # exactly 300 s
@example(9001, 30.0)
@example(100, 0.1)  # longer than 300 s with fewer frames than samples
def test_glm(total: int, fps: float) -> None:
    assert check_padding("glm", total, fps) == reference("glm", total, fps)


# Red if the rates of the spec are not used.
def test_spec_values_count() -> None:
    clip = header(900, 30.0)
    assert len(sample_frames(spec("qwen3"), clip).indices) == 60
    assert len(sample_frames(dataclasses.replace(spec("qwen3"), fps=1.0), clip).indices) == 30
    assert len(sample_frames(dataclasses.replace(spec("qwen3"), max_frames=10), clip).indices) == 10
    assert len(sample_frames(dataclasses.replace(spec("qwen2_5"), min_frames=100), clip).indices) == 100
    assert len(sample_frames(dataclasses.replace(spec("glm"), max_seconds=10.0), clip).indices) == 20


# Red if the clock of Qwen2.5's positions is that of the source and not of the sampled frames.
@pytest.mark.parametrize(("frames", "fps"), [(30, 10), (31, 25), (7, 3), (2, 30)])
def test_seconds_per_group(frames: int, fps: int) -> None:
    item = make_video_item(load_video(video(frames, fps), MediaConfig()), spec("qwen2_5"))
    metadata = VideoMetadata(total_num_frames=frames, fps=float(fps), frames_indices=list(item.frame_indices))
    assert math.isclose(seconds_per_group(item), 2 / metadata.sampled_fps)
