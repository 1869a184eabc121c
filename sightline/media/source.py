"""Whatever a user hands over as an image, a video or a file becomes MediaRefs: bytes, digest, header. No pixel is decoded.

path, file:// URL   read from disk, if allowed_local_media_path covers it
data: URL           base64
http(s):// URL      fetched, see media/fetch.py
bytes               an encoded file
PIL image, array    kept as raw RGB pixels (images only)
ImageEmbeddings     what the tower would make of an image
MediaRef            as it is: loaded before
a list of images    a video of these frames (media/frame_sources.py)
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image, ImageOps

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.addresses import Resolver
from sightline.media.arrays import ImageEmbeddings, embeddings_ref, is_array, picture_of
from sightline.media.data_url import EmbeddedFile, data_of, decode_data_url
from sightline.media.digests import Digester, digest_of
from sightline.media.fetch import RoomFor, fetch, fetch_async
from sightline.media.files import path_of_url, read_file, size_of_file
from sightline.media.frame_sources import FrameSources, frames_of
from sightline.media.frames import pack_frames
from sightline.media.header import read_image_header, read_video_header
from sightline.media.known_files import KnownFile, TenantFiles
from sightline.media.limits import (
    ByteAllowance,
    Kind,
    RequestBudget,
    check_image_work,
    check_listed_frames,
    check_size,
    check_video,
)
from sightline.media.pdf import pages_of
from sightline.media.pillow import pillow_errors
from sightline.media.source_names import display_name, scheme_of
from sightline.timing import StageClock
from sightline.types import ImageHeader, MediaRef, VideoHeader

FileSource = str | Path | bytes
ImageSource = FileSource | Image.Image | ImageEmbeddings | Any  # arrays and tensors: media/arrays.py

T = TypeVar("T")


def load_image(
    source: ImageSource, limits: MediaConfig, clock: StageClock | None = None, budget: RequestBudget | None = None
) -> MediaRef:
    """`clock` is told how long fetching took, and how long digest and header. `budget` counts the bytes of a whole request."""
    (ref,) = load_media("image", source, limits, clock, budget)
    return ref


def load_video(
    source: Any, limits: MediaConfig, clock: StageClock | None = None, budget: RequestBudget | None = None
) -> MediaRef:
    """As load_image; a list of what load_image takes is a video of these frames."""
    (ref,) = load_media("video", source, limits, clock, budget)
    return ref


def load_media(
    kind: Kind,
    source: Any,
    limits: MediaConfig,
    clock: StageClock | None = None,
    budget: RequestBudget | None = None,
    name: str = "",
    known: TenantFiles | None = None,
) -> list[MediaRef]:
    """One image or video, or the pages of a PDF, which `budget` is told of as images. `name` is what to call it, by default
    where it is from. `known` are files that came before, and is told of this one."""
    clock = clock or StageClock()
    if isinstance(source, MediaRef):
        return [source]
    if kind == "image" and isinstance(source, ImageEmbeddings):
        with clock.stage("header"):
            return [_from_embeddings(source, limits, budget)]
    if kind == "image" and (isinstance(source, Image.Image) or is_array(source)):
        with clock.stage("header"):
            picture = source if isinstance(source, Image.Image) else picture_of(source)
            return [_from_pillow(picture, f"<{type(source).__name__}>", limits)]
    frames = frames_of(source) if kind == "video" else None
    if frames is not None:
        check_listed_frames(f"Video {frames.name}", len(frames.sources), limits)
        return [_packed(frames, [load_image(frame, limits, clock, budget) for frame in frames.sources], clock)]
    own_name, data = _named_bytes(kind, source, limits, clock, budget, name)
    return _references(kind, data, own_name, limits, clock, budget, known)


def load_all(
    sources: Sequence[tuple[Kind, Any, str]],
    limits: MediaConfig,
    clock: StageClock,
    budget: RequestBudget,
    digester: Digester,
    known: TenantFiles | None = None,
) -> list[list[MediaRef]]:
    """load_media of each (kind, source, name) in turn, but for the digests of plain files, which are taken side by side."""
    found: list[list[MediaRef]] = []
    plain: list[tuple[int, Kind, bytes, ImageHeader | VideoHeader, str]] = []
    for kind, source, name in sources:
        if kind == "pdf" or (kind == "video" and frames_of(source) is not None):
            found.append(load_media(kind, source, limits, clock, budget, name, known))
            continue
        own_name, data = _named_bytes(kind, source, limits, clock, budget, name)
        with clock.stage("header"):
            before = _known(kind, data, own_name, limits, known)
            if before is None:
                plain.append((len(found), kind, data, _header(kind, data, own_name, limits), own_name))
        found.append([before] if before is not None else [])
    with clock.stage("header"):
        digests = digester.digests([data for _, _, data, _, _ in plain])
    for (index, kind, data, header, own_name), digest in zip(plain, digests, strict=True):
        found[index] = [_reference_of(kind, data, digest, header, own_name, known)]
    return found


@dataclass(frozen=True)
class AsyncLoader:
    """load_media for an event loop: it waits for the network on the loop and does all else in a thread.

    Clocks are not shared between threads: give each item of a request its own.
    """

    limits: MediaConfig
    resolver: Resolver | None = None  # looks up host names
    budget: RequestBudget | None = None
    executor: Executor | None = None  # has the threads; by default the loop's
    room_for: RoomFor | None = None  # waits until there is room for so many bytes more; what it raises ends the loading
    known: TenantFiles | None = None  # files that came before

    async def load(self, kind: Kind, source: Any, clock: StageClock | None = None, name: str = "") -> list[MediaRef]:
        clock = clock or StageClock()
        frames = frames_of(source) if kind == "video" else None
        if frames is not None:
            check_listed_frames(f"Video {frames.name}", len(frames.sources), self.limits)
            stills = [ref for frame in frames.sources for ref in await self.load("image", frame, clock)]
            return [await self._in_thread(_packed, frames, stills, clock)]
        if not (isinstance(source, str) and scheme_of(source) in ("http", "https")):
            if self.room_for is not None and (path := _path_of(source)) is not None:
                await self.room_for(await self._in_thread(size_of_file, path, self.limits.allowed_local_media_path))
            return await self._in_thread(load_media, kind, source, self.limits, clock, self.budget, name, self.known)
        own_name = name or display_name(source)
        allowance = ByteAllowance(kind, own_name, self.limits, self.budget)
        with clock.stage("fetch"):
            data = await fetch_async(source, self.limits, allowance, self.resolver, self.room_for)
        return await self._in_thread(_references, kind, data, own_name, self.limits, clock, self.budget, self.known)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)


def _path_of(source: Any) -> Path | None:
    """Of a local file."""
    if not isinstance(source, str) or not (scheme := scheme_of(source)):
        return Path(source) if isinstance(source, str | Path) else None
    try:
        return path_of_url(source, "") if scheme == "file" else None
    except MediaError:  # which whoever reads it will hear again
        return None


def _packed(frames: FrameSources, stills: Sequence[MediaRef], clock: StageClock) -> MediaRef:
    with clock.stage("header"):
        return pack_frames(stills, frames.name, frames.fps)


def _named_bytes(
    kind: Kind, source: Any, limits: MediaConfig, clock: StageClock, budget: RequestBudget | None, given_name: str = ""
) -> tuple[str, bytes]:
    if not isinstance(source, str | Path | bytes | EmbeddedFile):
        raise MediaError(f"The {kind} cannot be read: an object of type {type(source).__name__} is no source of one.")
    name = given_name or ("<bytes>" if isinstance(source, bytes) else display_name(source))
    with clock.stage("fetch"):
        return name, _read(source, ByteAllowance(kind, name, limits, budget), limits)


def _references(
    kind: Kind,
    data: bytes,
    name: str,
    limits: MediaConfig,
    clock: StageClock,
    budget: RequestBudget | None,
    known: TenantFiles | None,
) -> list[MediaRef]:
    with clock.stage("header"):
        if kind == "pdf":
            pages = pages_of(data, name, limits)
            if budget is not None:
                budget.take_items(["image"] * len(pages))
            return pages
        before = _known(kind, data, name, limits, known)
        if before is not None:
            return [before]
        return [_reference_of(kind, data, digest_of(data), _header(kind, data, name, limits), name, known)]


def _known(kind: Kind, data: bytes, name: str, limits: MediaConfig, known: TenantFiles | None) -> MediaRef | None:
    """A file that came before, in the bytes that are kept, so that those which have just come can go."""
    found = known.find(kind, data) if known is not None else None
    if found is None or kind == "pdf":
        return None
    _check(kind, found.header, name, limits)
    return MediaRef(kind, found.data, found.digest, found.header, name)


def _reference_of(
    kind: Kind,
    data: bytes,
    digest: bytes,
    header: ImageHeader | VideoHeader,
    name: str,
    known: TenantFiles | None,
) -> MediaRef:
    assert kind != "pdf", "a PDF is its pages"
    if known is not None:
        known.keep(kind, KnownFile(data, digest, header))
    return MediaRef(kind, data, digest, header, name)


def _header(kind: Kind, data: bytes, name: str, limits: MediaConfig) -> ImageHeader | VideoHeader:
    """What the file says of itself, within limits."""
    if not data:
        raise MediaError(f"{kind.capitalize()} {name} cannot be read: it is empty.")
    header = read_image_header(data, name) if kind == "image" else read_video_header(data, name, limits.max_video_frames)
    _check(kind, header, name, limits)
    return header


def _check(kind: Kind, header: ImageHeader | VideoHeader, name: str, limits: MediaConfig) -> None:
    subject = f"{kind.capitalize()} {name}"
    check_size(subject, header.width, header.height, limits)
    if isinstance(header, ImageHeader):
        check_image_work(subject, header, limits)
    else:
        check_video(subject, header.duration, limits)


def _from_embeddings(given: ImageEmbeddings, limits: MediaConfig, budget: RequestBudget | None) -> MediaRef:
    name = "<embeddings>"
    allowance = ByteAllowance("image", name, limits, budget)
    allowance.check(len(given.data))
    allowance.take(len(given.data))
    check_size(f"Image {name}", given.width, given.height, limits)
    return embeddings_ref(given, name)


def _from_pillow(image: Image.Image, name: str, limits: MediaConfig) -> MediaRef:
    if image.width == 0 or image.height == 0:
        raise MediaError(f"Image {name} cannot be used: its size is {image.width}x{image.height} pixels.")
    check_size(f"Image {name}", image.width, image.height, limits)
    with pillow_errors(name):  # the image may be lazily opened and broken
        upright = ImageOps.exif_transpose(image).convert("RGB")
        pixels = upright.tobytes()
    width, height = upright.size
    digest = digest_of(struct.pack("<4sQQ", b"RGB ", width, height) + pixels)
    return MediaRef("image", pixels, digest, ImageHeader("RGB", width, height, 1), name)


def _read(source: FileSource | EmbeddedFile, allowance: ByteAllowance, limits: MediaConfig) -> bytes:
    """The encoded bytes, within limits."""
    if isinstance(source, EmbeddedFile):
        return data_of(source, allowance)
    if isinstance(source, bytes):
        allowance.check(len(source))
        allowance.take(len(source))
        return source
    if isinstance(source, Path):
        return read_file(source, limits.allowed_local_media_path, allowance)
    scheme = scheme_of(source)
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
