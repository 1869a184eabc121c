"""Resized sizes against transformers'."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchvision_on_cpu
from sightline.errors import MediaError
from sightline.media.sizes import image_size, smart_resize, smart_resize_clip, video_size
from sightline.spec import ImageSpec, VideoSpec
from sightline.types import ImageHeader, VideoHeader

torchvision_on_cpu.declare_operators()
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as reference_clip  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference_picture  # noqa: E402

MEAN = (0.5, 0.5, 0.5)
SIDES = st.one_of(st.integers(1, 100), st.integers(1, 8000))
# (factor, min_pixels, max_pixels) of checkpoints, and tight budgets in which every branch is taken often
BUDGETS = st.sampled_from(
    [
        (28, 3136, 12_845_056),
        (32, 65_536, 16_777_216),
        (28, 12_544, 9_633_792),
        (32, 4096, 25_165_824),
        (28, 100_352, 602_112),
        (32, 1, 1),
        (28, 300_000, 300_001),
    ]
)


def outcome(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords)
    except (MediaError, ValueError):
        return "refused"


# Red with round-half-up (720 -> 736), with the aspect limit off, or with floor and ceiling exchanged.
@settings(max_examples=2500, deadline=None)
@given(SIDES, SIDES, BUDGETS)
@example(720, 1280, (32, 65_536, 16_777_216))
@example(1, 200, (28, 3136, 12_845_056))
@example(1, 201, (28, 3136, 12_845_056))
def test_one_picture(height: int, width: int, budget: tuple[int, int, int]) -> None:
    factor, least, most = budget
    expected = outcome(reference_picture, height, width, factor=factor, min_pixels=least, max_pixels=most)
    assert outcome(smart_resize, height, width, factor, least, most) == expected


# Red if small sides are not enlarged first, if frames are not rounded half to even (5 frames count as 4), or if the number of
# frames under the root is the rounded one.
@settings(max_examples=2500, deadline=None)
@given(SIDES, SIDES, st.integers(2, 800), BUDGETS)
@example(720, 1280, 2, (28, 12_544, 9_633_792))
@example(10, 3000, 5, (32, 4096, 25_165_824))
def test_clip(height: int, width: int, frames: int, budget: tuple[int, int, int]) -> None:
    factor, least, most = budget
    expected = outcome(reference_clip, frames, height, width, 2, factor, min_pixels=least, max_pixels=most)
    assert outcome(smart_resize_clip, height, width, frames, 2, factor, least, most) == expected


# Reference sizes of Qwen3-VL, by hand: red if anything above agrees with transformers but not with the published models.
@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (720, 1280, (704, 1280)),
        (1080, 1920, (1088, 1920)),
        (1440, 2560, (1440, 2560)),
        (960, 1280, (960, 1280)),
        (560, 560, (576, 576)),
    ],
)
def test_known_sizes(height: int, width: int, expected: tuple[int, int]) -> None:
    assert smart_resize(height, width, 32, 65_536, 16_777_216) == expected


def test_the_aspect_limit_is_a_sentence() -> None:
    with pytest.raises(MediaError, match=r"^A picture of 5000x10 pixels is too narrow: the aspect ratio may be 200 at most\.$"):
        smart_resize(10, 5000, 28, 3136, 1_000_000)


# Red if a budget per clip is applied per image, or the other way round.
def test_specs_choose_the_rule() -> None:
    header = ImageHeader("PNG", 1921, 1083, 1)
    for budget, expected in (
        ("per_image", reference_picture(1083, 1921, 28, 3136, 1_000_000)),
        ("per_clip", reference_clip(2, 1083, 1921, 2, 28, 3136, 1_000_000)),
    ):
        spec = ImageSpec(3136, 1_000_000, budget, 14, 2, 2, MEAN, MEAN)
        assert image_size(spec, header) == expected
    assert reference_picture(1083, 1921, 28, 3136, 1_000_000) != reference_clip(2, 1083, 1921, 2, 28, 3136, 1_000_000)
    video = VideoHeader("avi", 1921, 1083, 100, 30.0, 100 / 30)
    for style, frames, expected in (
        ("qwen2_5", 9, reference_picture(1083, 1921, 28, 3136, 4_000_000)),
        ("qwen3", 9, reference_clip(9, 1083, 1921, 2, 28, 3136, 4_000_000)),
        ("glm", 10, reference_clip(10, 1083, 1921, 2, 28, 3136, 4_000_000)),
        ("qwen3", 1, reference_clip(2, 1083, 1921, 2, 28, 3136, 4_000_000)),  # transformers refuses one frame
    ):
        spec = VideoSpec(style, 3136, 4_000_000, 2.0, 4, 768, 300.0, 14, 2, 2, MEAN, MEAN, 2.0)
        assert video_size(spec, video, frames) == expected
