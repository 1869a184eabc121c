"""Whatever a user hands over as an image or a video becomes a MediaRef: bytes, digest, header. No pixel is decoded.

path, file:// URL   read from disk, if allowed_local_media_path covers it
data: URL           base64
http(s):// URL      fetched, see media/fetch.py
bytes               an encoded file
PIL image           kept as raw RGB pixels (images only)
"""

import binascii
import hashlib
import re
import stat
import struct
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from PIL import Image, ImageOps

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.fetch import fetch
from sightline.media.header import read_image_header, read_video_header
from sightline.media.pillow import pillow_errors
from sightline.timing import StageClock
from sightline.types import ImageHeader, MediaRef

VideoSource = str | Path | bytes
ImageSource = VideoSource | Image.Image
Kind = Literal["image", "video"]

_MEGABYTE = 1_000_000
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=://)|data(?=:)", re.IGNORECASE)


def load_image(source: ImageSource, limits: MediaConfig, clock: StageClock | None = None) -> MediaRef:
    """`clock` is told how long fetching took, and how long digest and header."""
    clock = clock or StageClock()
    if isinstance(source, Image.Image):
        with clock.stage("header"):
            return _from_pillow(source, limits)
    with clock.stage("fetch"):
        data, name = _read(source, "image", limits, limits.max_image_mb * _MEGABYTE)
    with clock.stage("header"):
        header = read_image_header(data, name)
        _check_pixels(f"Image {name}", header.width, header.height, limits)
        return MediaRef("image", data, hashlib.sha256(data).digest(), header, name)


def load_video(source: VideoSource, limits: MediaConfig, clock: StageClock | None = None) -> MediaRef:
    """`clock` is told how long fetching took, and how long digest and header."""
    clock = clock or StageClock()
    with clock.stage("fetch"):
        data, name = _read(source, "video", limits, limits.max_video_mb * _MEGABYTE)
    with clock.stage("header"):
        header = read_video_header(data, name, limits.max_video_frames)
        _check_pixels(f"Video {name}", header.width, header.height, limits)
        return MediaRef("video", data, hashlib.sha256(data).digest(), header, name)


def _from_pillow(image: Image.Image, limits: MediaConfig) -> MediaRef:
    name = f"<{type(image).__name__}>"
    _check_pixels(f"Image {name}", image.width, image.height, limits)
    with pillow_errors(name):  # the image may be lazily opened and broken
        upright = ImageOps.exif_transpose(image).convert("RGB")
        pixels = upright.tobytes()
    width, height = upright.size
    if width == 0 or height == 0:
        raise MediaError(f"Image {name} cannot be used: its size is {width}x{height} pixels.")
    digest = hashlib.sha256(struct.pack("<4sQQ", b"RGB ", width, height) + pixels).digest()
    return MediaRef("image", pixels, digest, ImageHeader("RGB", width, height, 1), name)


def _check_pixels(subject: str, width: int, height: int, limits: MediaConfig) -> None:
    if width * height > limits.max_image_pixels:
        raise MediaError(
            f"{subject} has {width}x{height} pixels, more than the {limits.max_image_pixels:,} allowed (max_image_pixels)."
        )


def _read(source: VideoSource, kind: Kind, limits: MediaConfig, max_bytes: int) -> tuple[bytes, str]:
    """The encoded bytes and the name that messages use."""
    if isinstance(source, bytes):
        data, name = source, "<bytes>"
    elif isinstance(source, Path):
        data, name = _from_path(source, kind, limits, max_bytes), _shortened(str(source))
    elif isinstance(source, str):
        data, name = _from_text(source, kind, limits, max_bytes), _shortened(source)
    else:
        raise MediaError(f"The {kind} cannot be read: an object of type {type(source).__name__} is no source of one.")
    if not data:
        raise MediaError(f"{kind.capitalize()} {name} cannot be read: it is empty.")
    if len(data) > max_bytes:
        raise _too_large(kind, name, len(data), max_bytes)
    return data, name


def _from_text(text: str, kind: Kind, limits: MediaConfig, max_bytes: int) -> bytes:
    found = _SCHEME.match(text)
    scheme = found[0].lower() if found else ""
    if scheme == "data":
        return _from_data_url(text, kind, max_bytes)
    if scheme in ("http", "https"):
        return fetch(text, f"{kind.capitalize()} {_shortened(text)}", limits, max_bytes)
    if scheme == "file":
        host, _, path = text[len("file://") :].partition("/")
        if host not in ("", "localhost"):
            raise MediaError(f"{kind.capitalize()} {_shortened(text)} cannot be read: a file URL may not name host {host!r}.")
        return _from_path(Path(unquote(f"/{path}")), kind, limits, max_bytes)
    if scheme:
        raise MediaError(
            f"{kind.capitalize()} {_shortened(text)} cannot be read: "
            f"scheme {scheme!r} is not supported; use data, http, https, file or a path."
        )
    return _from_path(Path(text), kind, limits, max_bytes)


def _from_data_url(text: str, kind: Kind, max_bytes: int) -> bytes:
    name = _shortened(text)
    about, comma, payload = text.partition(",")
    if not comma or not about.lower().rstrip().endswith(";base64"):
        raise MediaError(f"{kind.capitalize()} {name} cannot be read: a data URL must have the form data:<type>;base64,<data>.")
    try:
        encoded = payload.encode("ascii").translate(None, b" \t\r\n\f\v")
        if len(encoded) // 4 * 3 - 2 > max_bytes:
            raise _too_large(kind, name, len(encoded) // 4 * 3, max_bytes)
        if len(encoded) % 4 or encoded.endswith(b"==="):  # strict_mode lets padding after a complete group pass
            raise ValueError("wrong padding")
        return binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError as error:  # binascii.Error and UnicodeEncodeError are ValueErrors
        raise MediaError(f"{kind.capitalize()} {name} cannot be read: its data is not base64.") from error


def _from_path(path: Path, kind: Kind, limits: MediaConfig, max_bytes: int) -> bytes:
    name = _shortened(str(path))
    if limits.allowed_local_media_path is None:
        raise MediaError(f"{kind.capitalize()} {name} cannot be read: local files are not allowed (allowed_local_media_path).")
    try:
        # Symbolic links and .. are followed first, so that they cannot lead out of the folder; existence is looked at after, so
        # that nobody learns which files there are elsewhere.
        real = path.resolve()
        if not real.is_relative_to(Path(limits.allowed_local_media_path).resolve()):
            raise MediaError(
                f"{kind.capitalize()} {name} cannot be read: it is outside {limits.allowed_local_media_path} "
                "(allowed_local_media_path)."
            )
        status = real.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer, a device may never end
            raise MediaError(f"{kind.capitalize()} {name} cannot be read: it is not a file.")
        if status.st_size > max_bytes:
            raise _too_large(kind, name, status.st_size, max_bytes)
        with real.open("rb") as file:
            return file.read(max_bytes + 1)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a zero byte in the name
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise MediaError(f"{kind.capitalize()} {name} cannot be read: {reason}.") from error


def _too_large(kind: Kind, name: str, size: int, max_bytes: int) -> MediaError:
    return MediaError(
        f"{kind.capitalize()} {name} has {size / _MEGABYTE:.1f} MB, "
        f"more than the {max_bytes // _MEGABYTE} MB allowed (max_{kind}_mb)."
    )


def _shortened(text: str, most: int = 100) -> str:
    """Fit for a message: a data URL of megabytes keeps its start and says its length."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters)"
