"""What is sent: pictures, clips, texts and files of one's own, the same for the same seed."""

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pybase64
import pytest
from PIL import Image

from sightline.bench.load.arrivals import arrival_times
from sightline.bench.load.body import Medium, RequestOptions, RequestSample, image_part, request_body, text_part
from sightline.bench.load.custom import read_custom
from sightline.bench.load.datasets import DatasetConfig, check_memory, make_samples, share_out
from sightline.bench.load.images import RESOLUTIONS, ImageKind, make_image, parse_resolution
from sightline.bench.load.mmmu import read_mmmu
from sightline.bench.load.ranges import IntRange, int_range
from sightline.bench.load.videos import VideoKind, make_video, when_changed
from sightline.errors import ConfigError


def file_of(url: bytes | str) -> bytes:
    text = url if isinstance(url, str) else url.decode()
    return pybase64.b64decode(text.partition("base64,")[2])


def opened(medium: Medium) -> Image.Image:
    image = Image.open(io.BytesIO(file_of(medium.url)))
    image.load()
    return image


def parts_of(sample: RequestSample) -> list[dict[str, Any]]:
    return list(sample.messages[0]["content"])


def urls_of(sample: RequestSample) -> list[bytes]:
    return [part["image_url"]["url"].url for part in parts_of(sample) if part["type"] == "image_url"]


# ---- Pictures


def test_resolutions() -> None:
    assert parse_resolution("1080p") == (1920, 1080) and parse_resolution("2K") == (2560, 1440)
    assert parse_resolution("560x720") == (720, 560)  # height first
    for wrong in ("", "0x5", "5x0", "00x1", "x", "1080", "8k", "100000x1", "-1x5"):
        with pytest.raises(ConfigError, match="unknown"):
            parse_resolution(wrong)
    assert set(RESOLUTIONS) == {"360p", "720p", "1080p", "2k", "4k"}


@pytest.mark.parametrize("form", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("content", ["noise", "photo", "screen"])
def test_pictures_are_files_of_their_kind(form: Any, content: Any) -> None:
    kind = ImageKind("90x120", content, form)
    image = opened(make_image(kind, (1, 1, 1)))
    assert image.size == (120, 90) and image.format == form.upper() and image.mode == "RGB"
    assert make_image(kind, (1, 1, 1)).url == make_image(kind, (1, 1, 1)).url
    assert len({make_image(kind, (1, 1, number)).url for number in range(5)}) == 5


def test_random_and_blank_as_sglang_calls_them() -> None:
    """Red if random is other than noise, or a blank picture has anything on it."""
    kinds = {content: ImageKind("9x12", content, "png") for content in ("noise", "random", "blank")}
    assert make_image(kinds["random"], (1, 1, 1)).url == make_image(kinds["noise"], (1, 1, 1)).url
    assert np.asarray(opened(make_image(kinds["blank"], (1, 1, 1)))).tolist() == [[[255] * 3] * 12] * 9


# Red if the "photographs" are noise or flat: photographs of one megapixel at quality 85 take some 100 to 600 kB.
def test_photographs_have_the_sizes_of_photographs() -> None:
    photo, noise = (len(file_of(make_image(ImageKind("720p", content), (1, 1, 1)).url)) for content in ("photo", "noise"))
    assert 0.1 < photo * 8 / (1280 * 720) < 4 < noise * 8 / (1280 * 720)
    pixels = np.asarray(opened(make_image(ImageKind("720p", "photo"), (1, 1, 2))), np.float64)
    assert pixels.std() > 15
    assert np.abs(np.diff(pixels, axis=1)).mean() < 0.5 * pixels.std()  # neighbours resemble each other


# Red if "screenshots" are photographs, blank or always the same: real ones have a few hundred colours, mostly in runs, and PNG
# files of 0.2 to 2 bits a pixel.
def test_screens_have_the_nature_of_screenshots() -> None:
    files = [file_of(make_image(ImageKind("720p", "screen", "png"), (1, 1, number)).url) for number in range(4)]
    for file in files:
        assert 0.15 < len(file) * 8 / (1280 * 720) < 3
        pixels = np.asarray(Image.open(io.BytesIO(file)))
        colours = len(np.unique(pixels.reshape(-1, 3), axis=0))
        runs = (pixels[:, 1:] == pixels[:, :-1]).all(axis=-1).mean()
        assert 100 < colours < 10_000 and runs > 0.8 and (pixels[1:] != pixels[:-1]).any(axis=(1, 2)).mean() > 0.3
    assert len(set(files)) == 4


@pytest.mark.parametrize("resolution", ["1x1", "3x500", "16x16"])
def test_odd_sizes(resolution: str) -> None:
    for content in ("noise", "photo", "screen"):
        assert opened(make_image(ImageKind(resolution, content), (0, 1, 2))).size == parse_resolution(resolution)


def test_sides_that_a_format_cannot_have() -> None:
    with pytest.raises(ConfigError, match="webp files have at most 16383"):
        ImageKind("10x20000", format="webp")


# Red if requests share a picture unasked, or the measured ones appear in the warm-up.
def test_every_picture_is_new() -> None:
    config = DatasetConfig(image=ImageKind("32x32"), image_count=3, seed=5)
    samples = make_samples(config, 4, 1.0) + make_samples(config, 2, 1.0, warm_up=True)
    urls = [url for sample in samples for url in urls_of(sample)]
    assert len(urls) == 18 and len(set(urls)) == 18
    assert {url for sample in make_samples(config, 4, 1.0) for url in urls_of(sample)} == set(urls[:12])


def test_pictures_that_come_again() -> None:
    config = DatasetConfig(image=ImageKind("32x32"), image_count=2, distinct_images=3)
    urls = [urls_of(sample) for sample in make_samples(config, 3, 1.0)]
    assert len({url for pair in urls for url in pair}) == 3
    assert urls[0][0] is urls[1][1]  # the same bytes, not a copy


@pytest.mark.parametrize(("position", "kinds"), [("first", ["image_url", "text"]), ("last", ["text", "image_url"])])
def test_where_the_picture_stands(position: Any, kinds: list[str]) -> None:
    sample = make_samples(DatasetConfig(image=ImageKind("8x8"), media_position=position), 1, 1.0)[0]
    assert [part["type"] for part in parts_of(sample)] == kinds


def test_media_that_would_not_fit_are_refused() -> None:
    check_memory(800, 3, free=1000)
    with pytest.raises(ConfigError, match=r"7 images or videos would take 9\.0 GB of memory, but 10\.0 GB are free"):
        check_memory(9_000_000_000, 7, free=10_000_000_000)


# ---- Bodies


# Red if a body in pieces is other JSON than the whole, or shared pictures are copied.
def test_a_body_in_pieces_is_one_json_document() -> None:
    media = [Medium.of(bytes([number]) * 100, "image/png") for number in range(2)]
    parts = [image_part(media[0]), text_part('quotes " and ü'), image_part(media[1]), image_part(media[0])]
    sample = RequestSample([{"role": "user", "content": parts}], 5, {"seed": 7})
    pieces = request_body(sample, RequestOptions("m", extra_body={"seed": 1, "top_p": 0.5}))
    assert sum(piece is media[0].url for piece in pieces) == 2
    body = json.loads(b"".join(pieces))
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "text", "image_url", "image_url"]
    assert body["messages"][0]["content"][2]["image_url"]["url"] == media[1].url.decode()
    assert body["seed"] == 7 and body["top_p"] == 0.5 and body["max_completion_tokens"] == 5


# ---- Clips and texts


def test_clips_have_their_frames() -> None:
    clip = make_video(VideoKind("64x96", frames=9, fps=3), (1, 2, 3))
    assert clip.url.startswith(b"data:video/mp4;base64,")
    with av.open(io.BytesIO(file_of(clip.url))) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 3
    assert len(frames) == 9 and frames[0].shape == (64, 96, 3)
    assert any((one != frames[0]).any() for one in frames[1:])
    config = DatasetConfig("video", video=VideoKind("32x32", 2, 1))
    kinds = [[part["type"] for part in parts_of(sample)] for sample in make_samples(config, 2, 1.0)]
    assert kinds == [["video_url", "text"]] * 2


# Red if frames that repeat differ once they are decoded, or not as many repeat as were asked for.
@pytest.mark.parametrize("content", ["photo", "screen"])
def test_frames_that_repeat(content: Any) -> None:
    clip = make_video(VideoKind("96x128", 40, 4, content, 0.8), (1, 2, 3))
    with av.open(io.BytesIO(file_of(clip.url))) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    changes = [(one != other).any() for one, other in itertools.pairwise(frames)]
    assert len(frames) == 40 and sum(changes) == (7 if content == "screen" else pytest.approx(7, abs=1))
    assert clip.url == make_video(VideoKind("96x128", 40, 4, content, 0.8), (1, 2, 3)).url


def test_changes_come_in_bursts() -> None:
    """Red if not as many frames change as the share says, the first is none, or changes are strewn about."""
    for seed in range(200):
        random = np.random.default_rng(seed)
        frames, repeat = int(random.integers(1, 200)), float(random.random())
        changes = when_changed(random, frames, repeat)
        assert len(changes) == frames and changes[0] and sum(changes) == max(1, round(frames * (1 - repeat)))
        begins = sum(now and not before for before, now in itertools.pairwise(changes))
        assert begins <= -(-(sum(changes) - 1) // 12)
    assert when_changed(np.random.default_rng(0), 5, 1.0) == [True, False, False, False, False]


@pytest.mark.parametrize(("per_word", "words"), [(1.0, 60), (1.5, 40), (6.0, 10), (500.0, 1)])
def test_length_of_texts(per_word: float, words: int) -> None:
    sample = make_samples(DatasetConfig("text", input_len=60), 1, per_word)[0]
    assert len(sample.messages[0]["content"].split()) == words


# ---- Arrivals


def test_arrivals_are_poisson_and_the_same_for_a_seed() -> None:
    times = arrival_times(4000, 20.0, seed=7)
    assert times == arrival_times(4000, 20.0, seed=7) != arrival_times(4000, 20.0, seed=8)
    gaps = np.diff(times)
    assert times[0] == 0.0 and (gaps > 0).all()
    assert times[-1] == pytest.approx(3999 / 20.0)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as of an exponential distribution
    assert arrival_times(3, float("inf"), seed=1) == [0.0, 0.0, 0.0]
    assert arrival_times(1, 5.0, seed=1) == [0.0] and arrival_times(0, 5.0, seed=1) == []
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="request rate"):
            arrival_times(3, wrong, seed=1)


# ---- Files of one's own


def test_custom_files(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "pictures" / "a.png")
    lines = [
        {"prompt": "What is this?", "image_files": ["pictures/a.png", "https://example.com/b.jpg"], "output_tokens": 9},
        {"messages": [{"role": "user", "content": "Hello"}], "extra_body": {"seed": 4}},
    ]
    file = tmp_path / "set.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    first, second = read_custom(file, output_len=3)
    parts = parts_of(first)
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert file_of(parts[0]["image_url"]["url"].url) == (tmp_path / "pictures" / "a.png").read_bytes()
    assert parts[1]["image_url"]["url"] == "https://example.com/b.jpg"
    assert first.output_len == 9 and second.output_len == 3
    assert second.messages == [{"role": "user", "content": "Hello"}] and second.extra_body == {"seed": 4}
    config = DatasetConfig("custom", path=file)
    assert [sample.output_len for sample in make_samples(config, 5, 1.0)] == [9, 128, 9, 128, 9]
    assert [sample.output_len for sample in make_samples(config, 1, 1.0, warm_up=True)] == [128]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Line 1 of"),
        ('{"text": "x"}', "unknown field `text`"),
        ("{}", "either 'messages' or 'prompt'"),
        ('{"prompt": "x", "image_files": ["a.xyz"]}', "'a.xyz' is not known"),
        ('{"prompt": "x", "image_files": ["a.png"]}', "a.png"),
        ('{"prompt": "x", "output_tokens": 0}', "'output_tokens' is 0"),
        ('{"messages": [], "image_files": ["a.png"]}', "belong to 'prompt'"),
        ("", "has no lines"),
    ],
)
def test_custom_files_that_cannot_be_used(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(line)
    with pytest.raises(ConfigError, match=said):
        read_custom(file, 1)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_custom(tmp_path / "none.jsonl", 1)


def test_lengths_are_drawn_from_a_share_of_them_on() -> None:
    """Red if a length lies outside, all are the same, or the same seed draws others; 1 leaves them as they are."""
    config = DatasetConfig("text", input_len=40, output_len=20, range_ratio=0.5, seed=4)
    samples = make_samples(config, 200, 1.0)
    words = [len(sample.messages[0]["content"].split()) for sample in samples]
    answers = [sample.output_len for sample in samples]
    assert (min(words), max(words), min(answers), max(answers)) == (20, 40, 10, 20)
    assert np.corrcoef(words, answers)[0, 1] < 0.5
    assert [sample.output_len for sample in make_samples(config, 200, 1.0)] == answers
    fixed = make_samples(DatasetConfig("text", input_len=40, output_len=20), 9, 1.0)
    assert {(len(sample.messages[0]["content"].split()), sample.output_len) for sample in fixed} == {(40, 20)}
    least = make_samples(DatasetConfig("text", input_len=3, output_len=2, range_ratio=0.0), 99, 1.0)
    assert {sample.output_len for sample in least} == {1, 2}


def test_ranges_of_a_request() -> None:
    """Red if an end of a range is never drawn, a number outside is, or the same seed draws others."""
    config = DatasetConfig("image", image=ImageKind("40-90"), image_count=IntRange(0, 3), output_len=IntRange(3, 6), seed=4)
    samples = make_samples(config, 60, 1.0)
    counts = [len(urls_of(sample)) if isinstance(sample.messages[0]["content"], list) else 0 for sample in samples]
    assert set(counts) == {0, 1, 2, 3} and {sample.output_len for sample in samples} == {3, 4, 5, 6}
    pictures = [url for sample, count in zip(samples, counts, strict=True) if count for url in urls_of(sample)]
    sizes = [Image.open(io.BytesIO(file_of(url))).size for url in pictures]
    sides = [side for size in sizes for side in size]
    assert min(sides) >= 40 and max(sides) <= 90 and len(set(sides)) > 20 and any(width != height for width, height in sizes)
    assert len(set(pictures)) == len(pictures)
    again = make_samples(config, 60, 1.0)
    assert [sample.output_len for sample in again] == [sample.output_len for sample in samples]
    assert [url for sample, count in zip(again, counts, strict=True) if count for url in urls_of(sample)] == pictures
    few = make_samples(replace(config, distinct_images=5), 60, 1.0)
    assert len({url for sample, count in zip(few, counts, strict=True) if count for url in urls_of(sample)}) == 5
    half = make_samples(replace(config, range_ratio=0.5, input_len=40), 60, 1.0)
    assert {sample.output_len for sample in half} == {3, 4, 5, 6}  # the ratio is of lengths that are no range


def test_numbers_draw_what_they_drew_before_there_were_ranges() -> None:
    """Red if runs of earlier records cannot be repeated: the same seed must give the same bytes."""
    config = DatasetConfig("image", image=ImageKind("24x32"), image_count=2, output_len=20, range_ratio=0.5, seed=9)
    samples = make_samples(config, 3, 1.0)
    assert [sample.output_len for sample in samples] == [13, 11, 13]
    urls = [make_image(ImageKind("24x32"), (9, 1, number)).url for number in range(6)]
    assert [url for sample in samples for url in urls_of(sample)] == urls


@pytest.mark.parametrize(("text", "said"), [("3-1", "ends before"), ("a", "neither"), ("1-", "neither"), ("", "neither")])
def test_ranges_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        int_range(text)


def test_ranges_of_sides() -> None:
    assert [str(side) for side in ImageKind("300-1600").sides] == ["300-1600"] * 2
    assert [str(int_range(text)) for text in ("0-3", "7", "5-5")] == ["0-3", "7", "5"]
    assert int_range("7").shown == 7 and int_range("0-3").shown == "0-3"
    for wrong, said in (("9-3", "ends before"), ("0-9", "at least 1 pixel")):
        with pytest.raises(ConfigError, match=said):
            ImageKind(wrong)
    with pytest.raises(ConfigError, match="webp files have at most"):
        ImageKind("10-20000", format="webp")
    with pytest.raises(ConfigError, match="'mmmu' takes one number"):
        DatasetConfig("mmmu", output_len=IntRange(1, 2))


# ---- MMMU


def test_questions_are_measured_once() -> None:
    """Red if a question comes twice without a word, or one that warmed the server up is measured while others are left."""
    questions = [RequestSample([{"role": "user", "content": str(number)}], 1) for number in range(5)]
    plenty = share_out(questions, 3, 2)
    assert (plenty.measured, plenty.warm_ups, plenty.shortage) == (questions[:3], questions[3:], None)
    short = share_out(questions, 9, 1)
    assert short.measured == questions and short.warm_ups == questions[-1:]
    assert short.shortage is not None and "5 requests are sent, not 9. No other questions are left" in short.shortage
    assert share_out(questions, 9, 0).shortage == "The dataset has 5 questions: 5 requests are sent, not 9."
    assert share_out(questions, 5, 0).shortage is None


def test_mmmu_questions(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 5), "red").save(buffer, "PNG")
    rows = [
        {
            "id": f"validation_Math_{number}",
            "question": f"Which is number {number}? <image 1>",
            "options": "['one', 'two']",
            "answer": "A",
            "question_type": "multiple-choice",
            "image_1": "data:image/png;base64," + pybase64.b64encode(buffer.getvalue()).decode(),
        }
        for number in range(1, 6)
    ]
    (tmp_path / "validation.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    samples = read_mmmu(tmp_path, 32, seed=1, most=100)
    texts = [" ".join(part["text"] for part in parts_of(sample) if part["type"] == "text") for sample in samples]
    assert sorted(text.split("?")[0] for text in texts) == [f"Which is number {number}" for number in range(1, 6)]
    assert all("(A) one" in text for text in texts)
    assert all(any(part["type"] == "image_url" for part in parts_of(sample)) for sample in samples)
    again = read_mmmu(tmp_path, 32, seed=1, most=100)
    assert [sample.messages for sample in again] == [sample.messages for sample in samples]
    assert len(read_mmmu(tmp_path, 32, seed=1, most=2)) == 2


def test_mmmu_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="MMMU"):
        read_mmmu(tmp_path, 32, seed=1, most=2)
    with pytest.raises(ConfigError, match=r"--dataset-path is .* no such folder"):
        read_mmmu(tmp_path / "none", 32, seed=1, most=2)
