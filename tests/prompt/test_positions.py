"""Three-axis positions: by hand, against a slow and obvious walk over the tokens, and against transformers."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from prompt.builders import (
    CASES,
    FAMILIES,
    QWEN_VIDEO,
    byte_tokenizer,
    image_item,
    media_tokens,
    processor_spec,
    video_item,
    written,
)
from sightline.models.families.qwen2_5_vl.processor import seconds_per_group
from sightline.prompt.expand import expand
from sightline.prompt.positions import prompt_positions
from sightline.types import MediaItem, MediaSpan


def spans_of(item: int, media: MediaItem, start: int, family: str, gap: int) -> list[MediaSpan]:
    """The spans of one item: one, or one per group with `gap` tokens of text between them."""
    if media.ref.kind == "image" or family == "qwen2.5-vl":
        return [MediaSpan(item, start, media.rows, 0)]
    rows = media.rows // media.grid[0]
    return [MediaSpan(item, start + group * (rows + gap), rows, group * rows) for group in range(media.grid[0])]


def expanded(folder: Path, family: str, prompt: str, items: list[MediaItem]) -> tuple[NDArray[np.int32], tuple[MediaSpan, ...]]:
    return expand(prompt, items, processor_spec(family), media_tokens(family), byte_tokenizer(folder, family))


# --- by hand ---


@pytest.mark.parametrize("family", FAMILIES)
def test_image_by_hand(family: str) -> None:
    """Red if an axis is swapped, the block does not start where text stopped, or text resumes elsewhere than max + 1."""
    positions, delta = prompt_positions(10, [image_item(2, 3)], [MediaSpan(0, 2, 6, 0)], processor_spec(family))
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert positions.dtype == np.int32
    assert delta == 7 - 10


def test_known_delta() -> None:
    """Red if an image of 8 x 12 patches after four tokens does not let text resume at 10, with a delta of -18."""
    positions, delta = prompt_positions(4 + 24 + 2, [image_item(4, 6)], [MediaSpan(0, 4, 24, 0)], processor_spec("qwen3-vl"))
    assert positions[:, 28].tolist() == [10, 10, 10]
    assert delta == -18


def test_text_only() -> None:
    """Red if text alone is numbered in any way but 0, 1, 2, … on all axes."""
    positions, delta = prompt_positions(4, [], [], processor_spec("qwen3-vl"))
    assert positions.tolist() == [[0, 1, 2, 3]] * 3
    assert delta == 0


@pytest.mark.parametrize(
    ("fps", "times", "resumes"),  # two frames per group, all sampled: seconds per group = 2 / fps
    [
        (2.0, [3, 5, 7, 9, 11, 13], 14),
        (4.0, [3, 4, 5, 6, 7, 8], 9),
        (1.0, [3, 7, 11, 15, 19, 23], 24),
        (3.0, [3, 4, 5, 7, 8, 9], 10),  # 4/3 of a position per group, floored
        (8.0, [3, 3, 4, 4, 5, 5], 7),  # the 4 x 4 grid is then longer than the clock
    ],
)
def test_qwen2_5_video_by_hand(fps: float, times: list[int], resumes: int) -> None:
    """Red if the clock is rounded to whole seconds, or text resumes after the grid instead of after the largest position."""
    video = video_item(6, 4, 4, fps=fps)
    positions, delta = prompt_positions(3 + 96 + 2, [video], [MediaSpan(0, 3, 96, 0)], processor_spec("qwen2.5-vl"))
    assert positions[0, 3:99].reshape(6, 16).tolist() == [[time] * 16 for time in times]
    assert positions[1, 3:99].tolist() == [3 + row for _ in range(6) for row in range(4) for _ in range(4)]
    assert positions[2, 3:99].tolist() == [3 + column for _ in range(24) for column in range(4)]
    assert positions[:, 99:].tolist() == [[resumes, resumes + 1]] * 3
    assert delta == resumes + 2 - 101


def test_qwen2_5_clock_survives_rounding() -> None:
    """Red if the clock is reckoned in float64, where 2 / (4 / 90 * 30) seconds per group fall a hair short of 1.5."""
    video = video_item(2, 1, 1, fps=30.0, indices=(0, 22, 45, 67), frame_count=90)  # three seconds, four frames
    assert 1.5 - 1e-12 < seconds_per_group(video) < 1.5
    positions, _ = prompt_positions(2, [video], [MediaSpan(0, 0, 2, 0)], processor_spec("qwen2.5-vl"))
    assert positions[0].tolist() == [0, 3]


@pytest.mark.parametrize("family", ["qwen3-vl", "glm-4.1v", "glm-4.6v-flash"])
def test_video_with_a_span_per_group(family: str) -> None:
    """Red if groups of these families share a clock instead of being images with text between them."""
    video = video_item(2, 1, 2, fps=1.0)
    positions, delta = prompt_positions(8, [video], [MediaSpan(0, 1, 2, 0), MediaSpan(0, 5, 2, 2)], processor_spec(family))
    assert positions.tolist() == [
        [0, 1, 1, 3, 4, 5, 5, 7],
        [0, 1, 1, 3, 4, 5, 5, 7],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert delta == 0


# --- a slow, obvious walk ---


def walk(
    length: int, items: Sequence[MediaItem], spans: Sequence[MediaSpan], merge: int, speed: float
) -> tuple[list[list[int]], int]:
    """One token at a time; what comes next is always one more than the largest position so far."""
    axes: list[list[int]] = [[], [], []]
    at = {token: (span, token - span.start) for span in spans for token in range(span.start, span.start + span.count)}
    base = 0
    for token in range(length):
        largest = max((max(axis) for axis in axes if axis), default=-1)
        if token not in at:
            for axis in axes:
                axis.append(largest + 1)
            continue
        span, row = at[token]
        if row == 0:
            base = largest + 1
        _, high, wide = items[span.item].grid
        group, rest = divmod(row, high * wide // merge**2)
        time = (
            math.floor(np.float32(group) * np.float32(speed) * np.float32(seconds_per_group(items[span.item]))) if group else 0
        )
        axes[0].append(base + time)
        axes[1].append(base + rest // (wide // merge))
        axes[2].append(base + rest % (wide // merge))
    return axes, max(max(axis) for axis in axes) + 1 - length


side = st.integers(1, 5)
images = st.builds(image_item, side, side)
videos = st.builds(video_item, st.integers(1, 6), side, side, fps=st.sampled_from([0.3, 1.0, 2.0, 2.5, 7.0, 30.0]))
gaps = st.integers(0, 4)


@given(
    family=st.sampled_from(FAMILIES),
    media=st.lists(st.tuples(gaps, images | videos), max_size=5),
    tail=gaps,
    speed=st.sampled_from([1.0, 2.0, 4.0, 25.0]),
)
def test_equals_the_walk(family: str, media: list[tuple[int, MediaItem]], tail: int, speed: float) -> None:
    """Red if the vectorised positions differ from the walk in any mix of text, images and videos, touching or not."""
    items = [item for _, item in media]
    spans: list[MediaSpan] = []
    end = 0
    for index, (gap, item) in enumerate(media):
        spans += spans_of(index, item, end + gap, family, gap)
        end = spans[-1].start + spans[-1].count
    length = end + tail
    processor = processor_spec(family, **({"tokens_per_second": speed} if family == "qwen2.5-vl" else {}))
    positions, delta = prompt_positions(length, items, spans, processor)
    if length == 0:
        assert positions.shape == (3, 0) and delta == 0
        return
    expected, expected_delta = walk(length, items, spans, 2, speed)
    assert positions.tolist() == expected
    assert delta == expected_delta


# --- transformers ---


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers(family: str, case: str, tmp_path: Path) -> None:
    """Red if positions or delta differ from get_rope_index: images of all families, videos of all but Qwen2.5 (next test)."""
    from prompt.oracle import positions as their_positions
    from prompt.oracle import processed

    pattern = CASES[case].replace("V", "I") if family == "qwen2.5-vl" else CASES[case]
    prompt, items = written(pattern, family)
    ids, spans = expanded(tmp_path, family, prompt, items)
    ours, delta = prompt_positions(len(ids), items, spans, processor_spec(family))
    theirs_prompt = prompt.replace(QWEN_VIDEO, "<|video_pad|>") if family in ("qwen3-vl", "qwen3.5") else prompt
    expected, expected_delta = their_positions(family, processed(family, tmp_path, theirs_prompt, items))
    assert ours.tolist() == expected.tolist()
    assert delta == expected_delta


def test_same_image_twice_equals_transformers(tmp_path: Path) -> None:
    """Red if an item that is used twice shares its positions."""
    from prompt.oracle import positions as their_positions
    from prompt.oracle import processed

    prompt, _ = written("I I", "qwen3-vl")
    items = [image_item(2, 5), image_item(2, 5)]
    ids, spans = expanded(tmp_path, "qwen3-vl", prompt, items)
    ours, delta = prompt_positions(len(ids), items, spans, processor_spec("qwen3-vl"))
    expected, expected_delta = their_positions("qwen3-vl", processed("qwen3-vl", tmp_path, prompt, items))
    assert (ours.tolist(), delta) == (expected.tolist(), expected_delta)


def test_qwen2_5_video_against_transformers(tmp_path: Path) -> None:
    """Red if the time axis differs from transformers' where it is right: whole seconds, a grid longer than the clock.

    Elsewhere it cuts the seconds per group to whole ones and lets text resume inside the video.
    """
    from prompt.oracle import positions as their_positions
    from prompt.oracle import processed

    prompt, _ = written("a V b I", "qwen2.5-vl")
    items = [video_item(3, 7, 4, fps=2.0), image_item(1, 2)]
    ids, spans = expanded(tmp_path, "qwen2.5-vl", prompt, items)
    ours, delta = prompt_positions(len(ids), items, spans, processor_spec("qwen2.5-vl"))
    expected, expected_delta = their_positions("qwen2.5-vl", processed("qwen2.5-vl", tmp_path, prompt, items))
    assert (ours.tolist(), delta) == (expected.tolist(), expected_delta)
