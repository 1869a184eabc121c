"""Placeholders to runs of ids: fixed cases by hand, and transformers' processors as the oracle."""

import json
from pathlib import Path

import numpy as np
import pytest

from assets import asset
from prompt.builders import (
    CASES,
    FAMILIES,
    GLM_VIDEO,
    IMAGE,
    QWEN_IMAGE,
    QWEN_VIDEO,
    VIDEO,
    byte_tokenizer,
    image_item,
    media_tokens,
    processor_spec,
    video_item,
    written,
)
from sightline.errors import PromptError
from sightline.prompt.expand import expand
from sightline.prompt.tokenizer import Tokenizer
from sightline.types import MediaItem, MediaSpan


class Bench:
    """A family's byte tokenizer and tokens, to expand prompts and to read the result as text."""

    def __init__(self, folder: Path, family: str) -> None:
        self.folder, self.family = folder, family
        self.tokenizer = byte_tokenizer(folder, family)
        self.tokens = media_tokens(family)

    def expand(self, prompt: str, *items: MediaItem) -> tuple[list[int], tuple[MediaSpan, ...]]:
        ids, spans = expand(prompt, items, processor_spec(self.family), self.tokens, self.tokenizer)
        assert ids.dtype == np.int32
        return ids.tolist(), spans

    def text(self, prompt: str, *items: MediaItem) -> str:
        return self.tokenizer.decode(self.expand(prompt, *items)[0], skip_special_tokens=False)


@pytest.fixture(params=FAMILIES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, request.param)


# --- by hand ---


def test_images(bench: Bench) -> None:
    """Red if a run has the wrong length or id, a span starts one off, or row offsets are not per item."""
    one = IMAGE[bench.family]
    ids, spans = bench.expand(f"ab{one}c{one}{one}", image_item(2, 3), image_item(1, 1), image_item(4, 1))
    start, pad, end = ([token] for token in bench.tokenizer.encode(one))
    assert pad == [bench.tokens.image]
    assert ids == [97, 98, *start, *pad * 6, *end, 99, *start, *pad, *end, *start, *pad * 4, *end]
    assert spans == (MediaSpan(0, 3, 6, 0), MediaSpan(1, 12, 1, 0), MediaSpan(2, 15, 4, 0))


def test_text_only(bench: Bench) -> None:
    """Red if a prompt without media is changed or gets spans."""
    assert bench.expand("héllo") == (list("héllo".encode()), ())


def test_bare_pads(bench: Bench) -> None:
    """Red if a placeholder without start and end marks, as in a hand-written prompt, is not found."""
    name = bench.tokenizer.token_of
    prompt = f"a{name(bench.tokens.image)}b{name(bench.tokens.video)}c"
    _, spans = bench.expand(prompt, image_item(1, 2), video_item(1, 1, 2, fps=1.0))
    assert [(span.item, span.count) for span in spans] == [(0, 2), (1, 2)]


def test_qwen2_5_video(tmp_path: Path) -> None:
    """Red if a Qwen2.5 video is cut into groups or gets times."""
    bench = Bench(tmp_path, "qwen2.5-vl")
    pad = "<|video_pad|>"
    assert bench.text(f"a{QWEN_VIDEO}b", video_item(3, 1, 2, fps=2.0)) == f"a<|vision_start|>{pad * 6}<|vision_end|>b"
    assert bench.expand(f"a{QWEN_VIDEO}b", video_item(3, 1, 2, fps=2.0))[1] == (MediaSpan(0, 2, 6, 0),)


def test_qwen3_video(tmp_path: Path) -> None:
    """Red if the outer start and end stay, a time is not the mean of a group's first and last frame, or has other digits."""
    bench = Bench(tmp_path, "qwen3-vl")
    video = video_item(3, 1, 2, fps=4.0, indices=(0, 5, 9, 13, 20, 29))  # (0 + 1.25)/2, (2.25 + 3.25)/2, (5 + 7.25)/2
    pads = "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    assert bench.text(f"a{QWEN_VIDEO}b", video) == f"a<0.6 seconds>{pads}<2.8 seconds>{pads}<6.1 seconds>{pads}b"
    _, spans = bench.expand(f"a{QWEN_VIDEO}b", video)
    width = len("<0.6 seconds>")
    starts = [1 + width + 1, 1 + 2 * width + 5, 1 + 3 * width + 9]
    assert spans == tuple(MediaSpan(0, start, 2, 2 * group) for group, start in enumerate(starts))


def test_glm_video(tmp_path: Path) -> None:
    """Red if the outer marks go, rows use the video id, or seconds are rounded, averaged or written before the frame."""
    bench = Bench(tmp_path, "glm-4.1v")
    video = video_item(3, 1, 2, fps=4.0, indices=(0, 5, 7, 13, 47, 50))  # first frames at 0, 1.75 and 11.75 s
    pads = "<|begin_of_image|><|image|><|image|><|end_of_image|>"
    assert bench.text(f"a{GLM_VIDEO}b", video) == f"a<|begin_of_video|>{pads}0{pads}1{pads}11<|end_of_video|>b"
    _, spans = bench.expand(f"a{GLM_VIDEO}b", video)
    assert [(span.start, span.count, span.row) for span in spans] == [(3, 2, 0), (8, 2, 2), (13, 2, 4)]


def test_glm_4_6v_video(tmp_path: Path) -> None:
    """Red if times are whole seconds as in GLM-4.1V, those of another frame than a group's first, or have other digits."""
    bench = Bench(tmp_path, "glm-4.6v-flash")
    video = video_item(3, 1, 2, fps=4.0, indices=(0, 5, 7, 13, 47, 50))  # first frames at 0, 1.75 and 11.75 s
    pads = "<|begin_of_image|><|image|><|image|><|end_of_image|>"
    written = f"{pads}0.0 seconds{pads}1.8 seconds{pads}11.8 seconds"
    assert bench.text(f"a{GLM_VIDEO}b", video) == f"a<|begin_of_video|>{written}<|end_of_video|>b"


def test_one_frame_and_odd_frames(tmp_path: Path) -> None:
    """Red if a group padded by repeating its last frame is timed by anything but its two entries."""
    bench = Bench(tmp_path, "qwen3-vl")
    pads = "<|vision_start|><|video_pad|><|vision_end|>"
    assert bench.text(QWEN_VIDEO, video_item(1, 1, 1, fps=2.0, indices=(3, 3))) == f"<1.5 seconds>{pads}"
    video = video_item(2, 1, 1, fps=2.0, indices=(0, 2, 4, 4))
    assert bench.text(QWEN_VIDEO, video) == f"<0.5 seconds>{pads}<2.0 seconds>{pads}"


# --- mismatches ---


@pytest.mark.parametrize(
    ("placeholders", "media", "said"),
    [
        ("", "i", "for images: 0, but images were given: 1"),
        ("i", "", "for images: 1, but images were given: 0"),
        ("iii", "ii", "for images: 3, but images were given: 2"),
        ("v", "", "for videos: 1, but videos were given: 0"),
        ("iv", "ii", "for images: 1, but images were given: 2"),
        ("iv", "vi", "Placeholder 0 of the prompt has kind 'image', but medium 0 is of kind 'video'"),
    ],
)
def test_mismatch(bench: Bench, placeholders: str, media: str, said: str) -> None:
    """Red if placeholders and media that do not pair up are expanded anyway."""
    prompt = "".join({"i": IMAGE, "v": VIDEO}[kind][bench.family] for kind in placeholders)
    items = [image_item(1, 1) if kind == "i" else video_item(1, 1, 1, fps=1.0) for kind in media]
    with pytest.raises(PromptError, match=said):
        bench.expand(prompt, *items)


def test_tokenizer_without_special_placeholders(tmp_path: Path) -> None:
    """Red if a tokenizer that spells a placeholder out in bytes passes unnoticed."""
    byte_tokenizer(tmp_path, "qwen3-vl")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<|image_pad|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(PromptError, match="to 0 ids where 1 belong"):
        expand(
            QWEN_IMAGE,
            [image_item(1, 1)],
            processor_spec("qwen3-vl"),
            media_tokens("qwen3-vl"),
            Tokenizer.from_folder(tmp_path),
        )


# --- against transformers ---


@pytest.mark.parametrize("case", CASES)
def test_equals_transformers(bench: Bench, case: str) -> None:
    """Red if any id of a prompt with images and videos differs from the family's processor."""
    from prompt.oracle import processed

    prompt, items = written(CASES[case], bench.family)
    # From 5.10 on, transformers keeps Qwen3's outer start and end around the groups. Without them in its prompt it writes the
    # format the models were trained with.
    theirs = prompt.replace(QWEN_VIDEO, "<|video_pad|>") if bench.family in ("qwen3-vl", "qwen3.5") else prompt
    expected = processed(bench.family, bench.folder, theirs, items)["input_ids"][0].tolist()
    ids, spans = bench.expand(prompt, *items)
    assert ids == expected
    rows = dict.fromkeys(range(len(items)), 0)
    for span in spans:
        assert span.row == rows[span.item]
        rows[span.item] += span.count
        assert set(ids[span.start : span.start + span.count]) <= set(bench.tokens.pads)
    assert list(rows.values()) == [item.rows for item in items]


def test_times_merge_with_their_neighbours() -> None:
    """Red if timestamps are encoded apart from the text around them: with real merges the ids would differ."""
    tokenizer = Tokenizer.from_folder(asset("tokenizer/qwen3"))
    tokens = media_tokens("qwen3-vl", None)
    video = video_item(2, 1, 2, fps=2.0)
    ids, _ = expand(f"Look at this:{QWEN_VIDEO}<end", [video], processor_spec("qwen3-vl"), tokens, tokenizer)
    pads = "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    whole = f"Look at this:<0.2 seconds>{pads}<1.2 seconds>{pads}<end"
    assert ids.tolist() == tokenizer.encode(whole)
    apart = [tokenizer.encode(piece) for piece in ("Look at this:", f"<0.2 seconds>{pads}<1.2 seconds>{pads}", "<end")]
    assert ids.tolist() != [token for piece in apart for token in piece]
