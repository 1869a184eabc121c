"""Every way to hand over an image or a video, and every way to get it wrong."""

import asyncio
import base64
import dataclasses
import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from media.pictures import HEIGHT, WIDTH, noise, picture, video
from media.web import JPEG, LOCAL, Names, pretend_internet, serving
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media import source as source_module
from sightline.media.decode import decode_image
from sightline.media.limits import RequestBudget
from sightline.media.source import AsyncLoader, load_image, load_video
from sightline.media.source_names import display_name
from sightline.timing import StageClock
from sightline.types import MediaRef

ANY = MediaConfig()


def refused(source: object, message: str, limits: MediaConfig = ANY) -> None:
    """The source raises one sentence that contains `message`."""
    with pytest.raises(MediaError) as caught:
        load_image(source, limits)
    text = str(caught.value)
    assert message in text
    assert text.endswith(".") and "\n" not in text and len(text) < 500


def data_url(data: bytes, about: str = "data:image/jpeg;base64") -> str:
    return f"{about},{base64.b64encode(data).decode()}"


# ---- The same file by every way


# Red if a way changes the bytes, hashes something else, or misses the header.
def test_every_way_gives_the_same_reference(tmp_path: Path) -> None:
    path = tmp_path / "a photo #1.jpg"
    path.write_bytes(JPEG)
    url = path.as_uri()
    ways = [JPEG, path, str(path), url, url.replace("file:///", "FILE://localhost/"), f"file://{path}", data_url(JPEG)]
    for way in ways:
        ref = load_image(way, ANY)
        assert (ref.kind, ref.data, ref.digest) == ("image", JPEG, hashlib.sha256(JPEG).digest())
        assert (ref.header.format, ref.header.width, ref.header.height) == ("JPEG", HEIGHT, WIDTH)


# Red if videos lose a way that images have.
def test_videos(tmp_path: Path) -> None:
    clip = video(5)
    path = tmp_path / "clip.mkv"
    path.write_bytes(clip)
    for way in (clip, path, path.as_uri(), data_url(clip, "data:video/x-matroska;base64")):
        ref = load_video(way, ANY)
        assert (ref.kind, ref.data, ref.digest) == ("video", clip, hashlib.sha256(clip).digest())
        assert (ref.header.frame_count, ref.header.fps) == (5, 10.0)
    with pytest.raises(MediaError, match="an object of type Image is no source of one"):
        load_video(picture(), ANY)
    with pytest.raises(
        MediaError, match=r"Video <bytes> has 64x48 pixels, more than the 3,000 allowed \(--max-image-pixels\)\."
    ):
        load_video(clip, MediaConfig(max_image_pixels=3000))
    with pytest.raises(MediaError, match=r"more than the 0 MB allowed \(--max-video-mb\)\."):
        load_video(clip, MediaConfig(max_video_mb=0))
    with pytest.raises(MediaError, match="more than the 4 frames allowed"):
        load_video(clip, MediaConfig(max_video_frames=4))


# Red if an image object is not turned upright, not converted to RGB, or its size is left out of the digest.
def test_image_objects() -> None:
    lazily = Image.open(io.BytesIO(JPEG))
    ref = load_image(lazily, ANY)
    assert (ref.header.format, ref.header.width, ref.header.height, ref.header.orientation) == ("RGB", HEIGHT, WIDTH, 1)
    assert np.array_equal(decode_image(ref), decode_image(load_image(JPEG, ANY)))
    transparent = picture("RGBA")
    assert np.array_equal(decode_image(load_image(transparent, ANY)), np.asarray(transparent.convert("RGB")))
    wide, tall = Image.fromarray(noise(4, 6)), Image.fromarray(noise(4, 6).reshape(6, 4, 3))
    assert load_image(wide, ANY).data == load_image(tall, ANY).data
    assert load_image(wide, ANY).digest != load_image(tall, ANY).digest
    assert load_image(wide, ANY).digest == load_image(wide.copy(), ANY).digest


# Red if a broken lazy image leaks Pillow's exception, or an empty one gets through.
def test_unusable_image_objects() -> None:
    refused(Image.open(io.BytesIO(JPEG[:-20])), "Image <JpegImageFile> cannot be read: image file is truncated")
    refused(Image.new("RGB", (0, 5)), "size is 0x5 pixels")
    refused(picture(), "has 22x14 pixels, more than the 300 allowed", MediaConfig(max_image_pixels=300))


# ---- On an event loop


def awaited(
    source: object, limits: MediaConfig = LOCAL, clock: StageClock | None = None, kind: str = "image", **options: object
) -> MediaRef:
    (ref,) = asyncio.run(AsyncLoader(limits, **options).load(kind, source, clock))
    return ref


# Red if the two paths differ in what they make of a source, or in what they say of a bad one.
def test_both_paths_agree(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEG)
    with serving() as server:
        for source in (JPEG, path, str(path), path.as_uri(), data_url(JPEG), server.url("jpeg"), picture()):
            clock = StageClock()
            assert awaited(source, clock=clock) == load_image(source, LOCAL)
            assert set(clock.seconds) <= {"fetch", "header"} and "header" in clock.seconds
        for bad in (b"", b"x", 42, "ftp://x/", "data:,", tmp_path / "no.jpg", server.url("nothing"), server.url("endless")):
            texts = []
            for load in (awaited, lambda bad, limits: load_image(bad, limits)):
                with pytest.raises(MediaError) as caught:
                    load(bad, dataclasses.replace(LOCAL, max_image_mb=1))
                texts.append(str(caught.value))
            assert texts[0] == texts[1]
    clip = video(3)
    assert awaited(clip, kind="video") == load_video(clip, LOCAL)


# Red if the resolver, the budget or the threads that were given are not used.
def test_what_the_asynchronous_path_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        dialled = pretend_internet(monkeypatch, server, "93.184.216.34")
        names = Names({"picture.example": [["93.184.216.34"]]})
        limits = MediaConfig(max_request_media_mb=1)
        budget = RequestBudget(limits)
        with ThreadPoolExecutor(1, thread_name_prefix="given") as threads:
            ref = awaited("http://picture.example/jpeg", limits, resolver=names, budget=budget, executor=threads)
            assert (ref.data, ref.source, dialled) == (JPEG, "http://picture.example/jpeg", ["93.184.216.34"])
            assert len(threads._threads) == 1
        assert budget.bytes_left() == 1_000_000 - len(JPEG)
        with pytest.raises(MediaError, match="--max-request-media-mb"):
            awaited(bytes(999_990), limits, budget=budget)


# Red if anything but waiting for the network is done on the event loop.
def test_the_event_loop_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[str] = []
    for name in ("decode_data_url", "read_file", "read_image_header"):
        function = getattr(source_module, name)

        def told(*arguments: object, function=function) -> object:
            where.append(threading.current_thread().name)
            return function(*arguments)

        monkeypatch.setattr(source_module, name, told)
    with serving() as server:
        awaited(data_url(JPEG))
        awaited(server.url("jpeg"))
    assert len(where) == 3 and "MainThread" not in where


# ---- Names in messages


# Red if a message has several lines, cannot be written as UTF-8, or repeats megabytes.
def test_messages_are_one_printable_line() -> None:
    for source in ("a\nb\x1b[31m.png", "http://a\r\nX: y/", "x\ud800.png", "data:image/png;base64," + "!" * 5_000_000):
        with pytest.raises(MediaError) as caught:
            load_image(source, LOCAL)
        text = str(caught.value)
        assert text.isprintable() and len(text) < 500 and text.encode()


# Red if passwords, signatures or pixels get into a message, and with it into a log.
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("https://host.example/a.png?X-Signature=abc#part", "https://host.example/a.png?…"),
        ("https://user:secret@host.example/a.png", "https://…@host.example/a.png"),
        ("https://user:" + "secret" * 50 + "@host.example/a", "https://…@host.example/a… (328 characters)"),
        ("http://a@b@host.example/a@c.png", "http://…@host.example/a@c.png"),
        ("data:image/png;base64,SECRET", "data:image/png;base64,… (28 characters)"),
        ("data:image/png;SECRET" + "x" * 200, "data:image/png;SECRET" + "x" * 79 + "… (221 characters)"),
        ("/a/b@c?d.png", "/a/b@c?d.png"),
        ("x" * 101, "x" * 100 + "… (101 characters)"),
    ],
)
def test_names_tell_nothing_that_they_carry(source: str, name: str) -> None:
    assert display_name(source) == name


# ---- Limits


# Red if the limits on bytes or pixels are not applied, or are off by one.
def test_limits(tmp_path: Path) -> None:
    path = tmp_path / "large.bmp"
    path.write_bytes(bytes(1_000_001))
    one = MediaConfig(max_image_mb=1)
    refused(path, f"Image {path} has 1.0 MB, more than the 1 MB allowed (--max-image-mb).", one)
    refused(bytes(1_000_001), "Image <bytes> has 1.0 MB, more than the 1 MB allowed (--max-image-mb).", one)
    refused(bytes(1_000_000), "it is none of", one)
    pixels = WIDTH * HEIGHT
    assert load_image(JPEG, MediaConfig(max_image_pixels=pixels)).header.width == HEIGHT
    refused(JPEG, "Image <bytes> has 14x22 pixels, more than the 307 allowed", MediaConfig(max_image_pixels=pixels - 1))


def test_unknown_schemes_and_types() -> None:
    refused("ftp://example.org/a.png", "scheme 'ftp' is not supported; use data, http, https, file or a path.")
    refused(42, "an object of type int is no source of one")
    refused(None, "an object of type NoneType is no source of one")
