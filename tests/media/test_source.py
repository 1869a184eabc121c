"""Every way to hand over an image or a video, and every way to get it wrong."""

import asyncio
import base64
import hashlib
import http.server
import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from media.pictures import HEIGHT, WIDTH, encoded, exif, noise, picture, video
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.decode import decode_image
from sightline.media.source import load_image, load_video

ANY = MediaConfig()
JPEG = encoded(picture(), "JPEG", exif=exif(6))


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
    with pytest.raises(MediaError, match=r"Video <bytes> has 64x48 pixels, more than the 3,000 allowed \(max_image_pixels\)\."):
        load_video(clip, MediaConfig(max_image_pixels=3000))
    with pytest.raises(MediaError, match=r"more than the 0 MB allowed \(max_video_mb\)\."):
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


# ---- Data URLs


# Red if white space inside the data is refused: mail programs and shells wrap lines.
def test_white_space_in_data_urls() -> None:
    text = base64.encodebytes(JPEG).decode()
    assert "\n" in text
    for payload in (text, text.replace("\n", "\r\n\t "), " " + text):
        assert load_image(f"data:image/jpeg;base64,{payload}", ANY).data == JPEG


# Red if garbage is skipped silently, as base64.b64decode does by default.
@pytest.mark.parametrize("garbage", ["!", "%3D", "é", "====", "-_", "\0", "A"])
def test_garbage_in_data_urls(garbage: str) -> None:
    refused(data_url(JPEG) + garbage, "is not base64")
    refused(data_url(JPEG, "data:image/jpeg;base64").replace(",", f",{garbage}", 1), "is not base64")


def test_malformed_data_urls() -> None:
    for url in ("data:image/png", "data:image/png,abc", "data:,", "data:image/png;base64"):
        refused(url, f"Image {url} cannot be read: a data URL must have the form data:<type>;base64,<data>")
    refused("data:image/png;base64,", "it is empty")
    refused(data_url(bytes(3_000_000)), "has 3.0 MB, more than the 2 MB allowed (max_image_mb)", MediaConfig(max_image_mb=2))
    refused(data_url(bytes(3_000_000)), "… (4,000,023 characters) cannot be read")


# ---- Files


def test_missing_and_odd_files(tmp_path: Path) -> None:
    pipe, loop, empty = tmp_path / "pipe", tmp_path / "loop", tmp_path / "empty"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    empty.touch()
    refused(tmp_path / "no.png", f"Image {tmp_path}/no.png cannot be read: No such file or directory.")
    refused(tmp_path, "it is not a file")
    refused(pipe, "it is not a file")  # opening it would wait for ever
    refused(Path("/dev/zero"), "it is not a file")
    refused(loop, "cannot be read")
    refused(empty, "it is empty")
    refused("a\0b.png", "cannot be read")
    refused("x" * 5000, "xxx… (5,000 characters) cannot be read: File name too long")
    refused("ftp://example.org/a.png", "scheme 'ftp' is not supported")
    refused("file://example.org/a.png", "a file URL may not name host 'example.org'")
    refused(42, "an object of type int is no source of one")
    refused(None, "an object of type NoneType is no source of one")
    refused("", "it is not a file")


# Red if the limits on bytes or pixels are not applied, or are off by one.
def test_limits(tmp_path: Path) -> None:
    path = tmp_path / "large.bmp"
    path.write_bytes(bytes(1_000_001))
    one = MediaConfig(max_image_mb=1)
    refused(path, f"Image {path} has 1.0 MB, more than the 1 MB allowed (max_image_mb).", one)
    refused(bytes(1_000_001), "Image <bytes> has 1.0 MB, more than the 1 MB allowed (max_image_mb).", one)
    refused(bytes(1_000_000), "it is none of", one)
    pixels = WIDTH * HEIGHT
    assert load_image(JPEG, MediaConfig(max_image_pixels=pixels)).header.width == HEIGHT
    refused(JPEG, "Image <bytes> has 14x22 pixels, more than the 307 allowed", MediaConfig(max_image_pixels=pixels - 1))


# Red if .. or a link leads out of the allowed folder, if a folder with the same start counts as inside, or if the answer tells
# whether a file outside exists.
def test_allowed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, beside = tmp_path / "media", tmp_path / "media-private"
    allowed.mkdir()
    beside.mkdir()
    for folder in (allowed, beside):
        (folder / "a.jpg").write_bytes(JPEG)
    (allowed / "out.jpg").symlink_to(beside / "a.jpg")
    (allowed / "folder").symlink_to(beside)
    (beside / "in.jpg").symlink_to(allowed / "a.jpg")
    limits = MediaConfig(allowed_local_media_path=str(allowed))
    outside = f"it is outside {allowed} (allowed_local_media_path)"
    for inside in (allowed / "a.jpg", (allowed / "a.jpg").as_uri(), f"{beside}/../media/a.jpg", beside / "in.jpg"):
        assert load_image(inside, limits).data == JPEG
    for path in (
        beside / "a.jpg",
        f"{allowed}/../media-private/a.jpg",
        f"file://{allowed}/%2e%2e/media-private/a.jpg",
        allowed / "out.jpg",
        allowed / "folder" / "a.jpg",
        beside / "missing.jpg",
        "/etc/passwd",
    ):
        refused(path, outside, limits)
    monkeypatch.chdir(allowed)
    assert load_image("a.jpg", limits).data == JPEG
    refused("../media-private/a.jpg", outside, limits)
    refused("a.jpg", "local files are not allowed", MediaConfig(allowed_local_media_path=None))
    assert load_image(JPEG, MediaConfig(allowed_local_media_path=None)).data == JPEG


# ---- The web


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.strip("/").split("/")
        getattr(self, f"_{name[0]}", self._missing)(*name[1:])

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header.replace("_", "-"), value)
        self.end_headers()

    def _missing(self, *_: str) -> None:
        self._answer(404)

    def _jpeg(self) -> None:
        self._answer(200, Content_Length=str(len(JPEG)))
        self.wfile.write(JPEG)

    def _endless(self) -> None:
        self._answer(200)
        try:
            while self.server.sent < 500_000_000:
                self.server.sent += self.wfile.write(bytes(65536))
        except OSError:
            pass

    def _announced(self) -> None:
        self._answer(200, Content_Length="3000000000")

    def _hop(self, left: str) -> None:
        self._answer(302, Location=f"/hop/{int(left) - 1}" if int(left) else "/jpeg")

    def _to(self, host: str, *path: str) -> None:
        self._answer(301, Location=f"http://{host}:{self.server.server_port}/{'/'.join(path)}")

    def _tofile(self) -> None:
        self._answer(301, Location="file:///etc/passwd")

    def _silent(self) -> None:
        time.sleep(2)

    def _trickle(self) -> None:
        """One byte of a header now and then, so that no single read times out."""
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            for _ in range(40):
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.ThreadingHTTPServer]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    made.sent = 0
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def at(server: http.server.ThreadingHTTPServer, path: str, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{server.server_port}/{path}"


# Red if the body changes on the way, or if a running event loop (a notebook) stands in the way.
def test_fetch(server: http.server.ThreadingHTTPServer) -> None:
    assert load_image(at(server, "jpeg"), ANY).data == JPEG

    async def inside() -> bytes:
        return load_image(at(server, "jpeg"), ANY).data

    assert asyncio.run(inside()) == JPEG


def test_failed_fetches(server: http.server.ThreadingHTTPServer) -> None:
    refused(at(server, "nothing"), f"Image {at(server, 'nothing')} cannot be fetched: the server answered with status 404.")
    refused(at(server, "jpeg"), "http(s) URLs are switched off (allow_http)", MediaConfig(allow_http=False))
    refused("http://", "cannot be fetched")
    refused("http://[::1", "cannot be fetched")
    refused("https://127.0.0.1:1/a.png", "cannot be fetched: ")
    refused("http://127.0.0.1:99999/a.png", "'http://127.0.0.1:99999/a.png' is not an http(s) URL with a host")


# Red if the limit acts only when the body is complete: the endless one would send 500 MB.
def test_size_limit_acts_while_the_body_arrives(server: http.server.ThreadingHTTPServer) -> None:
    limits = MediaConfig(max_image_mb=1)
    refused(at(server, "endless"), "it is larger than the 1 MB allowed", limits)
    assert server.sent < 50_000_000
    began = time.monotonic()
    refused(at(server, "announced"), "it is larger than the 1 MB allowed", limits)
    assert time.monotonic() - began < 5


# Red if redirects are not followed, are followed without end, or leave http(s).
def test_redirects(server: http.server.ThreadingHTTPServer) -> None:
    assert load_image(at(server, "hop/4"), ANY).data == JPEG
    refused(at(server, "hop/5"), "it redirects more than 5 times")
    refused(at(server, "tofile"), "'file:/etc/passwd' is not an http(s) URL with a host")


# Red if only the first host is compared with the list, or if the part before an @ passes for the host.
def test_allowed_domains(server: http.server.ThreadingHTTPServer) -> None:
    limits = MediaConfig(allowed_media_domains=("127.0.0.1", "Example.ORG"))
    assert load_image(at(server, "jpeg"), limits).data == JPEG
    assert load_image(at(server, "to/127.0.0.1/jpeg"), limits).data == JPEG
    host = "host 'localhost' is not among allowed_media_domains"
    refused(at(server, "jpeg", "localhost"), host, limits)
    refused(at(server, "to/localhost/jpeg"), host, limits)
    refused(at(server, "jpeg", "127.0.0.1@localhost"), host, limits)
    refused("http://127.0.0.1.evil.example/a.png", "host '127.0.0.1.evil.example' is not among", limits)


# Red if the time limit starts anew with every byte: the trickle would take two seconds.
@pytest.mark.parametrize("path", ["silent", "trickle"])
def test_time_limit(server: http.server.ThreadingHTTPServer, path: str) -> None:
    began = time.monotonic()
    refused(at(server, path), "it took longer than 0.3 s", MediaConfig(fetch_timeout_s=0.3))
    assert time.monotonic() - began < 1.5
