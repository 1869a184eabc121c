"""PDFs, lists of frames, and sizes and frames that a request chooses, over HTTP and asked of the embedded model."""

import base64
import io
import json
from importlib import resources
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from clips import make_clip
from media.pdfs import encrypted, many_pages, no_pages, pdf, picture_pdf
from server.media import data_url, image_part, png, text_part
from server.running import RunningServer

DEMO = Path(str(resources.files("sightline.data"))) / "demo"
SAMPLES = {(*one["images"], *one["videos"]): one for one in json.loads((DEMO / "questions.json").read_text())}


def file_part(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": data_url(data, "application/pdf"), "filename": "report.pdf", **fields}}


def video_part(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(data, "video/x-msvideo"), **fields}}


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return stream.getvalue()


def demo_frames() -> tuple[list[Image.Image], float]:
    with av.open(str(DEMO / "video.mkv")) as container:
        rate = float(container.streams.video[0].average_rate)
        return [frame.to_image() for frame in container.decode(video=0)], rate


def usage(server: RunningServer, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """What the answer says of its prompt: tokens of each kind of media, how many there are, how many were encoded."""
    answer = server.chat([*parts, text_part("What?")], max_tokens=1, extra_body={**fields, "return_timings": True}).model_dump()
    return {**answer["usage"]["prompt_tokens_details"], **answer["metadata"]}


def refused(server: RunningServer, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = server.post(messages=[{"role": "user", "content": [*parts, text_part("What?")]}], **fields)
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])


# ---- PDFs


@pytest.mark.parametrize("names", [("sign.png",), ("two_images_1.png", "two_images_2.png")])
def test_a_page_is_read_as_its_picture_is(server: RunningServer, names: tuple[str, ...]) -> None:
    """Pictures that the model knows how to read, each printed on a page: the right answers."""
    sample = SAMPLES[names]
    data = picture_pdf(*(Image.open(DEMO / name) for name in names))
    answer = server.chat([file_part(data), text_part(sample["question"])], temperature=0, max_tokens=48)
    assert answer.choices[0].message.content == sample["answer"]


def test_pages_are_images_for_limits_caches_and_bills(server: RunningServer) -> None:
    data = pdf((200, 100), (100, 100), (200, 100))
    assert usage(server, file_part(data))["images"] == 3
    assert usage(server, file_part(data))["encoded_items"] == 0
    few = usage(server, file_part(data, max_pixels=16_384))["image_tokens"]
    assert few < usage(server, file_part(data))["image_tokens"]
    assert usage(server, file_part(data), mm_processor_kwargs={"max_pixels": 16_384})["image_tokens"] == few
    both = usage(server, image_part(1), file_part(data), image_part(2))
    assert both["images"] == 5


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (lambda: encrypted(b"x"), "PDF report.pdf cannot be read: it is encrypted with a password."),
        (no_pages, "PDF report.pdf cannot be read: it is damaged or has no pages."),
        (lambda: pdf((20, 20))[:100], "PDF report.pdf cannot be read: it is damaged or has no pages."),
        (lambda: many_pages(101), "PDF report.pdf has 101 pages, more than the 100 allowed (--max-pdf-pages)."),
        (
            lambda: pdf((14_400, 14_400)),
            "Image report.pdf, page 1, has 28800x28800 pixels, more than the 150,000,000 allowed (--max-image-pixels).",
        ),
        (lambda: png(1), "File report.pdf cannot be used: it is no PDF, the only kind of file that is read."),
    ],
)
def test_files_that_cannot_be_used(server: RunningServer, file: Any, said: str) -> None:
    assert refused(server, file_part(file()))["message"] == said


def test_files_that_are_named_wrongly(server: RunningServer) -> None:
    assert "file_id" in refused(server, {"type": "file", "file": {"file_id": "file-1"}})["message"]
    assert "file_data" in refused(server, {"type": "file", "file": {}})["message"]
    assert "empty" in refused(server, {"type": "file", "file": {"file_data": ""}})["message"]
    named = {"file_url": "data:application/pdf;base64,QUJD", "file_data": "data:application/pdf;base64,QUJD"}
    assert "either" in refused(server, {"type": "file", "file": named})["message"]


# ---- Lists of frames


def frame_urls(frames: list[Image.Image], kind: str) -> list[str]:
    return [data_url(encoded(frame, kind.upper()), f"image/{kind}") for frame in frames]


def test_frames_are_a_video(server: RunningServer) -> None:
    """The frames that the model would have taken of a clip, sent by themselves, as a list of URLs and as vLLM's clients do."""
    frames, rate = demo_frames()
    sample = SAMPLES[("video.mkv",)]
    seen = frames[:: max(1, round(rate / 2))]
    part = {"type": "video_url", "video_url": {"url": frame_urls(seen, "png"), "fps": 2}}
    answer = server.chat([part, text_part(sample["question"])], temperature=0, max_tokens=48)
    assert answer.choices[0].message.content == sample["answer"]
    jpegs = ",".join(base64.b64encode(encoded(frame, "JPEG")).decode() for frame in seen)
    listed = usage(server, {"type": "video_url", "video_url": f"data:video/jpeg;base64,{jpegs}"})
    assert listed["video_tokens"] == usage(server, part)["video_tokens"] > 0 and listed["videos"] == 1


def test_frames_that_cannot_be_used(server: RunningServer) -> None:
    def part(*urls: str, **fields: Any) -> dict[str, Any]:
        return {"type": "video_url", "video_url": {"url": list(urls), **fields}}

    one, other = data_url(png(1)), data_url(png(1, width=64))
    assert "frame 1 has 64x64 pixels, but frame 0 has 96x64" in refused(server, part(one, other))["message"]
    assert "base64" in refused(server, part(one, "data:image/png;base64,!"))["message"]
    assert refused(server, part(one, one, one), mm_processor_kwargs={"max_frames": 2})["param"] == "max_frames"
    assert "4,096 allowed (--max-request-frames)" in refused(server, part(*["data:,"] * 4097))["message"]
    assert "URL" in refused(server, part())["message"]


# ---- Sizes and frames of a request's own


def test_a_request_chooses_the_frames_of_its_videos(server: RunningServer) -> None:
    clip = make_clip(24, fps=4)  # 6 s: 12 frames at 2 a second

    def tokens(part: dict[str, Any], **fields: Any) -> int:
        return int(usage(server, part, **fields)["video_tokens"])

    usual = tokens(video_part(clip))
    assert tokens(video_part(clip), mm_processor_kwargs={"fps": 4}) == 2 * usual
    assert tokens(video_part(clip), media_io_kwargs={"video": {"fps": 1}}) == usual // 2
    assert tokens(video_part(clip), media_io_kwargs={"video": {"num_frames": 4}}) == usual // 3
    assert tokens(video_part(clip), mm_processor_kwargs={"max_frames": 6}) == usual // 2
    assert tokens(video_part(clip, num_frames=4), mm_processor_kwargs={"fps": 4}) == usual // 3
    assert tokens(video_part(clip, max_pixels=16_384)) < usual
    assert tokens(video_part(clip)) == usual


def test_choices_have_embeddings_of_their_own(server: RunningServer) -> None:
    """Red if a choice is not part of the key: the second would be found in the cache."""
    part = video_part(make_clip(16, fps=4, seed=9))
    for fields in ({"num_frames": 6}, {"num_frames": 4}, {"num_frames": 4, "max_pixels": 20_000}):
        assert usage(server, part, mm_processor_kwargs=fields)["encoded_items"] == 1
        assert usage(server, part, mm_processor_kwargs=fields)["encoded_items"] == 0


@pytest.mark.parametrize(
    ("fields", "name", "said"),
    [
        ({"mm_processor_kwargs": {"fps": 0}}, "fps", "above 0"),
        ({"mm_processor_kwargs": {"fps": 2, "num_frames": 4}}, "fps", "max_frames"),
        ({"mm_processor_kwargs": {"max_frames": 10**6}}, "max_frames", "frames at most"),
        ({"media_io_kwargs": {"video": {"num_frames": 10**6}}}, "num_frames", "frames at most"),
        ({"mm_processor_kwargs": {"fps": 2}, "media_io_kwargs": {"video": {"fps": 3}}}, "fps", "media_io_kwargs.video"),
        ({"mm_processor_kwargs": {"max_pixels": 10**9}}, "max_pixels", "must be between"),
        ({"mm_processor_kwargs": {"do_sample_frames": False}}, "mm_processor_kwargs.do_sample_frames", "not supported"),
        ({"media_io_kwargs": {"audio": {}}}, "media_io_kwargs.audio", "not supported"),
    ],
)
def test_choices_that_are_refused(server: RunningServer, fields: dict[str, Any], name: str, said: str) -> None:
    error = refused(server, video_part(make_clip(8)), **fields)
    assert error["param"] == name and said in error["message"]


def test_a_rate_of_an_image_is_refused(server: RunningServer) -> None:
    part = image_part(1)
    part["image_url"]["fps"] = 2
    assert "fps" in refused(server, part)["message"]
