"""Resized sizes against transformers'."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchvision_on_cpu
from family_processors import make_processor, patch_spec
from sightline.errors import MediaError
from sightline.media.sizes import ClipBudget, PictureBudget, PixelBudget, smart_resize, smart_resize_clip
from sightline.types import ImageHeader, VideoHeader, View

torchvision_on_cpu.declare_operators()
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as reference_clip  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference_picture  # noqa: E402

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


# Red if a budget per clip is applied per picture, or the other way round, or a clip of one frame is refused as by transformers.
def test_budgets() -> None:
    spec = patch_spec(3136, 4_000_000)
    picture = reference_picture(1083, 1921, 28, 3136, 4_000_000)
    clips = {frames: reference_clip(frames, 1083, 1921, 2, 28, 3136, 4_000_000) for frames in (2, 9, 10)}
    assert len({picture, *clips.values()}) == 4
    for frames in (1, 9, 10):
        assert PictureBudget(spec).size(1083, 1921, frames) == picture
        assert ClipBudget(spec).size(1083, 1921, frames) == clips[max(frames, 2)]


# Red if the memory profile is told of less than a picture or a clip of that budget can have: narrow clips of many frames, or
# pictures that are enlarged, have more than max_pixels.
@settings(max_examples=2500, deadline=None)
@given(
    SIDES,
    SIDES,
    st.integers(1, 400).map(lambda groups: 2 * groups),
    st.sampled_from([(3136, 4_000_000), (300_000, 300_001), (3136, 3136), (1, 1)]),
    st.sampled_from([PictureBudget, ClipBudget]),
)
@example(25, 4945, 26, (3136, 4_000_000), ClipBudget)
@example(1, 200, 2, (300_000, 300_001), PictureBudget)
def test_most_pixels(height: int, width: int, frames: int, pixels: tuple[int, int], kind: type[PixelBudget]) -> None:
    budget = kind(patch_spec(*pixels))
    still, clip = outcome(budget.size, height, width, 1), outcome(budget.size, height, width, frames)
    if clip != "refused":
        assert max(still[0] * still[1], clip[0] * clip[1]) <= budget.most_pixels()
        assert clip[0] * clip[1] * frames <= budget.most_clip_pixels(frames)


# Red if a family's stills or clips have another budget than in transformers.
@pytest.mark.parametrize(
    ("family", "image", "frames"),
    [("qwen2.5-vl", 1, 1), ("qwen3-vl", 1, 10), ("glm-4.1v", 2, 10), ("glm-4.6v-flash", 2, 16)],
)
def test_families_choose_the_rule(family: str, image: int, frames: int) -> None:
    def expected(frames: int) -> tuple[int, int]:
        if frames == 1:
            return reference_picture(1083, 1921, 28, 3136, 1_000_000)
        return reference_clip(frames, 1083, 1921, 2, 28, 3136, 1_000_000)

    processor = make_processor(family, patch_spec(3136, 1_000_000))
    assert processor.layout(ImageHeader("PNG", 1921, 1083, 1)).views == (View.whole(expected(image)),)
    clip = processor.layout(VideoHeader("avi", 1921, 1083, 80, 16.0, 5.0))  # 5 s: 10 frames, of GLM-4.6V 6 a second
    assert clip.views == (View.whole(expected(len(clip.frame_indices) if frames > 1 else 1)),)
