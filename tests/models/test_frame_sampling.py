"""Sampled frames against transformers' video processors."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchvision_on_cpu
from family_processors import FAMILIES, make_processor, patch_spec
from media.pictures import encoded, picture, video
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.item import item_of
from sightline.media.source import load_image, load_video
from sightline.models.families.qwen2_5_vl.processor import seconds_per_group
from sightline.models.grid_processor import GridProcessor
from sightline.prompt.items import make_item
from sightline.prompt.media_options import MediaOptions
from sightline.types import FRAMES, VideoHeader

torchvision_on_cpu.declare_operators()
from transformers import (  # noqa: E402
    Glm4vVideoProcessor,
    Glm46VVideoProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLVideoProcessor,
)
from transformers.video_utils import VideoMetadata  # noqa: E402

PROCESSORS = {
    "qwen3-vl": Qwen3VLVideoProcessor(),
    "qwen2.5-vl": Qwen2VLVideoProcessor(fps=2),
    "glm-4.1v": Glm4vVideoProcessor(),
    "glm-4.6v-flash": Glm46VVideoProcessor(),
}
RATES = st.one_of(
    st.sampled_from([1.0, 2.0, 10.0, 12.5, 15.0, 24.0, 24000 / 1001, 25.0, 30.0, 30000 / 1001, 60.0, 120.0]),
    st.floats(0.1, 240.0, allow_nan=False),
)


def ours(family: str, **own: float) -> GridProcessor:
    processor = make_processor(family, patch_spec(4096, 25_165_824, 16), **own)
    assert isinstance(processor, GridProcessor)
    return processor


def header(total: int, fps: float) -> VideoHeader:
    return VideoHeader("avi", 64, 48, total, fps, total / fps)


def reference(family: str, total: int, fps: float) -> list[int]:
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    return [int(index) for index in PROCESSORS[family].sample_frames(metadata=metadata, fps=2)]


def check_padding(family: str, total: int, fps: float) -> list[int]:
    """What holds for every family; returns the frames before padding."""
    sampled = list(ours(family).sample_frames(header(total, fps)))
    layout = ours(family).layout(header(total, fps))
    assert list(layout.frame_indices) == sampled + sampled[-1:] * (len(sampled) % 2)
    assert sampled == sorted(sampled)
    assert sampled[0] == 0 and sampled[-1] < total
    assert len(sampled) <= ours(family).most_frames()
    assert layout.frame_times == tuple(index / fps for index in layout.frame_indices)
    assert layout.grids[0][0] == len(layout.frame_indices) // 2
    return sampled


# Red if the count is rounded instead of cut, a clamp is missing, or indices are cut instead of rounded.
@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.integers(1, 300), st.integers(1, 100_000)), RATES)
@example(1, 30.0)
@example(5, 30.0)
def test_qwen3(total: int, fps: float) -> None:
    assert check_padding("qwen3-vl", total, fps) == reference("qwen3-vl", total, fps)


# Red if the count is not floored to a multiple of two, or is clamped in another order.
@settings(max_examples=1000, deadline=None)
@given(st.integers(2, 5000), RATES)
@example(3, 30.0)
@example(4999, 2.0)
def test_qwen2_5(total: int, fps: float) -> None:
    expected = reference("qwen2.5-vl", total, fps)
    mine = check_padding("qwen2.5-vl", total, fps)
    if len(expected) % 2:  # float arithmetic gave transformers one index too many
        expected.pop()
    assert mine == expected


# Red if the arithmetic for long videos drifts: transformers' float32 may be one frame too high there, never more.
@settings(max_examples=500, deadline=None)
@given(st.integers(5000, 100_000), RATES)
def test_qwen2_5_in_long_videos(total: int, fps: float) -> None:
    expected = reference("qwen2.5-vl", total, fps)
    mine = check_padding("qwen2.5-vl", total, fps)
    assert len(expected) - len(mine) in (0, 1)
    assert all(theirs - own in (0, 1) for own, theirs in zip(mine, expected, strict=False))


# Red if a video of one frame is refused, as transformers does by dividing by zero, or has no frame, as GLM-4.6V's there.
@pytest.mark.parametrize("family", FAMILIES)
def test_one_frame(family: str) -> None:
    layout = ours(family).layout(header(1, 30.0))
    assert layout.frame_indices == (0, 0) and layout.frame_times == (0.0, 0.0)
    with pytest.raises(ZeroDivisionError):
        reference("qwen2.5-vl", 1, 30.0)
    assert reference("glm-4.6v-flash", 1, 30.0) == []


# Red if indices are floored, duplicates stay, the last frame is not repeated to an even count, or long clips keep 2 fps.
@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.integers(1, 300), st.integers(1, 100_000)), RATES)
@example(9000, 30.0)  # exactly 300 s
@example(9001, 30.0)
@example(100, 0.1)  # longer than 300 s with fewer frames than samples
def test_glm(total: int, fps: float) -> None:
    assert check_padding("glm-4.1v", total, fps) == reference("glm-4.1v", total, fps)


# Red if a rate, its limit in seconds or the most frames differ, if the clock of the frames is not summed up as there, or if too
# few or too many frames are spread between other ends.
@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.integers(1, 300), st.integers(1, 20_000), st.integers(1, 100_000)), RATES)
@example(900, 30.0)  # exactly 30 s
@example(901, 30.0)
@example(9000, 30.0)  # exactly 300 s
@example(9001, 30.0)
@example(72_000, 30.0)  # exactly 2,400 s
@example(100_000, 30.0)
@example(100, 0.1)  # fewer frames than samples
@example(95, 6.1)
def test_glm_4_6v(total: int, fps: float) -> None:
    expected = reference("glm-4.6v-flash", total, fps)
    assert check_padding("glm-4.6v-flash", total, fps) == (expected or [0, 0])


# Red if the rates of a checkpoint are not used.
def test_spec_values_count() -> None:
    def frames(family: str, **own: float) -> int:
        return len(ours(family, **own).layout(header(900, 30.0)).frame_indices)

    assert frames("qwen3-vl") == 60
    assert frames("qwen3-vl", fps=1.0) == 30
    assert frames("qwen3-vl", max_frames=10) == 10
    assert frames("qwen2.5-vl", min_frames=100) == 100
    assert frames("glm-4.1v", max_seconds=10.0) == 20


# Red if frames that a request chooses are others than those that transformers takes for the same words.
@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v"])
@pytest.mark.parametrize(
    "chosen", [{"fps": 1.0}, {"fps": 7.5}, {"num_frames": 8}, {"num_frames": 31}, {"fps": 4.0, "max_frames": 12}]
)
@pytest.mark.parametrize(("total", "fps"), [(40, 4.0), (900, 29.97), (33, 30.0)])
def test_a_request_s_own_frames(family: str, chosen: dict[str, float], total: int, fps: float) -> None:
    asked = (chosen.get("fps"), chosen.get("num_frames"), chosen.get("max_frames"))
    mine = ours(family).with_sampling(*asked).layout(header(total, fps)).frame_indices
    if family == "glm-4.1v":  # there is no number or most of frames in transformers: they are spread evenly
        if "fps" in chosen and "max_frames" not in chosen:
            metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
            expected = PROCESSORS[family].sample_frames(metadata=metadata, fps=chosen["fps"])
            assert list(mine) == [int(index) for index in expected] + [int(expected[-1])] * (len(expected) % 2)
        else:
            assert len(set(mine)) <= chosen.get("num_frames", chosen.get("max_frames", 0))
            assert mine[-1] == total - 1 or "num_frames" not in chosen
        return
    processor, own = PROCESSORS[family], dict(chosen)
    if family == "qwen3-vl":
        processor = Qwen3VLVideoProcessor(max_frames=int(own.pop("max_frames", 768)))
    elif "num_frames" in own:
        processor = Qwen2VLVideoProcessor()
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    expected = [int(index) for index in processor.sample_frames(metadata=metadata, **own)]
    assert list(mine) == expected + expected[-1:] * (len(expected) % 2)


# Red if a list of frames is sampled, or its rate is not what a request says.
@pytest.mark.parametrize("family", FAMILIES)
def test_all_frames_of_a_list_are_seen(family: str) -> None:
    processor = ours(family)
    for count in (1, 5, 6):
        ref = load_video([picture(seed=seed) for seed in range(count)], MediaConfig())
        slow, usual = (make_item(ref, processor, None, options) for options in (MediaOptions(fps=0.5), MediaOptions()))
        assert usual.frame_indices == (*range(count), *[count - 1] * (count % 2))
        assert (slow.frame_times == tuple(4 * time for time in usual.frame_times) and slow.key != usual.key) or count == 1
        if family == "qwen2.5-vl":
            assert (seconds_per_group(usual), seconds_per_group(slow)) == (1.0, 4.0)
    long = VideoHeader(FRAMES, 64, 48, processor.most_frames() + 1, 2.0, 1.0)
    with pytest.raises(MediaError, match=r"list of \d+ frames is too long"):
        processor.layout(long)


# Red if a request's own sizes reach memory that was not planned for.
@pytest.mark.parametrize("family", FAMILIES)
def test_choices_stay_within_what_was_planned(family: str) -> None:
    processor = make_processor(family, patch_spec(4096, 1_000_000, 16))
    ref = load_image(encoded(picture(height=1, width=50), "PNG"), MediaConfig())
    with pytest.raises(MediaError, match="for which the server has memory; ask for fewer pixels or frames"):
        make_item(ref, processor, None, MediaOptions(min_pixels=1_000_000))
    assert make_item(ref, processor, None, MediaOptions(min_pixels=500_000)).patches <= processor.most_patches_per_item()


# Red if the clock of Qwen2.5's positions is that of the source and not of the sampled frames.
@pytest.mark.parametrize(("frames", "fps"), [(30, 10), (31, 25), (7, 3), (2, 30)])
def test_seconds_per_group(frames: int, fps: int) -> None:
    item = item_of(load_video(video(frames, fps), MediaConfig()), ours("qwen2.5-vl"))
    metadata = VideoMetadata(total_num_frames=frames, fps=float(fps), frames_indices=list(item.frame_indices))
    assert math.isclose(seconds_per_group(item), 2 / metadata.sampled_fps)
