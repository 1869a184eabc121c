"""Whatever a user hands over as an image or a video becomes a MediaRef: bytes, digest, header. No pixel is decoded.

path, file:// URL   read from disk, if allowed_local_media_path covers it
data: URL           base64
http(s):// URL      fetched, see media/fetch.py
bytes               an encoded file
PIL image           kept as raw RGB pixels (images only)
"""

import asyncio
import re
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.addresses import Resolver
from sightline.media.data_url import EmbeddedFile, data_of, decode_data_url
from sightline.media.digests import Digester, digest_of
from sightline.media.fetch import fetch, fetch_async
from sightline.media.files import path_of_url, read_file
from sightline.media.header import read_image_header, read_video_header
from sightline.media.limits import ByteAllowance, Kind, RequestBudget, check_size, check_video
from sightline.media.pillow import pillow_errors
from sightline.timing import StageClock
from sightline.types import ImageHeader, MediaRef, VideoHeader

VideoSource = str | Path | bytes
ImageSource = VideoSource | Image.Image

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}(?=://)|data(?=:)", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=:)//[^/?#]*@")


def load_image(
    source: ImageSource, limits: MediaConfig, clock: StageClock | None = None, budget: RequestBudget | None = None
) -> MediaRef:
    """`clock` is told how long fetching took, and how long digest and header. `budget` counts the bytes of a whole request."""
    return _load("image", source, limits, clock or StageClock(), budget)


def load_video(
    source: VideoSource, limits: MediaConfig, clock: StageClock | None = None, budget: RequestBudget | None = None
) -> MediaRef:
    """`clock` is told how long fetching took, and how long digest and header. `budget` counts the bytes of a whole request."""
    return _load("video", source, limits, clock or StageClock(), budget)


def load_ref(
    kind: Kind, source: Any, limits: MediaConfig, clock: StageClock | None = None, budget: RequestBudget | None = None
) -> MediaRef:
    """As load_image or load_video, by the kind."""
    return _load(kind, source, limits, clock or StageClock(), budget)


def load_refs(
    sources: Sequence[tuple[Kind, Any]], limits: MediaConfig, clock: StageClock, budget: RequestBudget, digester: Digester
) -> list[MediaRef]:
    """load_ref of each in turn, but for their digests, which are taken side by side."""
    found: list[tuple[Kind, bytes, ImageHeader | VideoHeader, str]] = []
    for kind, source in sources:
        name, data = _named_bytes(kind, source, limits, clock, budget)
        with clock.stage("header"):
            found.append((kind, data, _header(kind, data, name, limits), name))
    with clock.stage("header"):
        digests = digester.digests([data for _, data, _, _ in found])
    return [MediaRef(kind, data, own, header, name) for (kind, data, header, name), own in zip(found, digests, strict=True)]


async def load_ref_async(
    kind: Kind,
    source: Any,
    limits: MediaConfig,
    clock: StageClock | None = None,
    resolver: Resolver | None = None,
    budget: RequestBudget | None = None,
    executor: Executor | None = None,
    on_fetched: Callable[[int], None] | None = None,
) -> MediaRef:
    """As load_image and load_video, for an event loop: it waits for the network on the loop and does all else in a thread.

    `resolver` looks up host names; `executor` has the threads, by default the loop's. `on_fetched` is told, on the loop, how
    many bytes come in over http(s) as they do; what it raises ends the fetch. Clocks are not shared between threads: give each
    item of a request its own.
    """
    clock = clock or StageClock()
    loop = asyncio.get_running_loop()
    if not (isinstance(source, str) and _scheme(source) in ("http", "https")):
        return await loop.run_in_executor(executor, _load, kind, source, limits, clock, budget)
    name = display_name(source)
    allowance = ByteAllowance(kind, name, limits, budget, on_fetched)
    with clock.stage("fetch"):
        data = await fetch_async(source, limits, allowance, resolver)
    return await loop.run_in_executor(executor, _reference, kind, data, name, limits, clock)


def _load(kind: Kind, source: Any, limits: MediaConfig, clock: StageClock, budget: RequestBudget | None) -> MediaRef:
    if kind == "image" and isinstance(source, Image.Image):
        with clock.stage("header"):
            return _from_pillow(source, limits)
    name, data = _named_bytes(kind, source, limits, clock, budget)
    return _reference(kind, data, name, limits, clock)


def _named_bytes(
    kind: Kind, source: Any, limits: MediaConfig, clock: StageClock, budget: RequestBudget | None
) -> tuple[str, bytes]:
    if not isinstance(source, str | Path | bytes | EmbeddedFile):
        raise MediaError(f"The {kind} cannot be read: an object of type {type(source).__name__} is no source of one.")
    name = "<bytes>" if isinstance(source, bytes) else display_name(source)
    with clock.stage("fetch"):
        return name, _read(source, ByteAllowance(kind, name, limits, budget), limits)


def _reference(kind: Kind, data: bytes, name: str, limits: MediaConfig, clock: StageClock) -> MediaRef:
    with clock.stage("header"):
        header = _header(kind, data, name, limits)
        return MediaRef(kind, data, digest_of(data), header, name)


def _header(kind: Kind, data: bytes, name: str, limits: MediaConfig) -> ImageHeader | VideoHeader:
    """What the file says of itself, within limits."""
    subject = f"{kind.capitalize()} {name}"
    if not data:
        raise MediaError(f"{subject} cannot be read: it is empty.")
    if kind == "image":
        image = read_image_header(data, name)
        check_size(subject, image.width, image.height, limits)
        return image
    video = read_video_header(data, name, limits.max_video_frames)
    check_size(subject, video.width, video.height, limits)
    check_video(subject, video.width, video.height, video.frame_count, video.duration, limits)
    return video


def _from_pillow(image: Image.Image, limits: MediaConfig) -> MediaRef:
    name = f"<{type(image).__name__}>"
    if image.width == 0 or image.height == 0:
        raise MediaError(f"Image {name} cannot be used: its size is {image.width}x{image.height} pixels.")
    check_size(f"Image {name}", image.width, image.height, limits)
    with pillow_errors(name):  # the image may be lazily opened and broken
        upright = ImageOps.exif_transpose(image).convert("RGB")
        pixels = upright.tobytes()
    width, height = upright.size
    digest = digest_of(struct.pack("<4sQQ", b"RGB ", width, height) + pixels)
    return MediaRef("image", pixels, digest, ImageHeader("RGB", width, height, 1), name)


def _read(source: VideoSource | EmbeddedFile, allowance: ByteAllowance, limits: MediaConfig) -> bytes:
    """The encoded bytes, within limits."""
    if isinstance(source, EmbeddedFile):
        return data_of(source, allowance)
    if isinstance(source, bytes):
        allowance.check(len(source))
        allowance.take(len(source))
        return source
    if isinstance(source, Path):
        return read_file(source, limits.allowed_local_media_path, allowance)
    scheme = _scheme(source)
    if scheme == "data":
        return decode_data_url(source, allowance)
    if scheme in ("http", "https"):
        return fetch(source, limits, allowance)
    if scheme == "file":
        return read_file(path_of_url(source, allowance.subject), limits.allowed_local_media_path, allowance)
    if scheme:
        raise MediaError(
            f"{allowance.subject} cannot be read: scheme {scheme!r} is not supported; use data, http, https, file or a path."
        )
    return read_file(Path(source), limits.allowed_local_media_path, allowance)


def is_data_url(source: Any) -> bool:
    """Whether it carries its data itself, so that nothing has to be waited for."""
    return isinstance(source, EmbeddedFile) or (isinstance(source, str) and _scheme(source) == "data")


def _scheme(text: str) -> str:
    found = _SCHEME.match(text)
    return found[0].lower() if found else ""


def display_name(source: str | Path | EmbeddedFile) -> str:
    """A source fit for messages and logs: one short line of printable text, and nothing of what it carries.

    Of a data URL the type is kept; of other URLs neither passwords nor the query, where signatures stand.
    """
    if isinstance(source, EmbeddedFile):
        return f"{source.start}… ({source.characters:,} characters)"
    text = str(source)
    scheme, most = _scheme(text), 100
    if scheme == "data":
        shown = text[: text.find(",", 0, most) + 1] or text[:most]
    elif scheme in ("http", "https"):
        shown = _PASSWORD.sub("//…@", text[:2000])
        shown = (shown.partition("?")[0] + ("?…" if "?" in shown else ""))[:most]
    else:
        shown = text[:most]
    line = "".join(character if character.isprintable() else "\ufffd" for character in shown)
    return line if len(text) <= most and scheme != "data" else f"{line}… ({len(text):,} characters)"
