"""Every limit on media, checked here and nowhere else: one sentence each, which names the limit, the flag and the value.

per item      bytes, pixels, shorter side, aspect, frames, seconds      ByteAllowance, check_size, check_video
              work to decode it (media/cost.py)                         check_image_work, RequestBudget.take_item
per request   items of each kind, bytes, frames that the model sees,    RequestBudget
              work to decode them
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from sightline.config import MediaConfig, read_media_counts
from sightline.errors import MediaError
from sightline.media.cost import JPEG_FORMATS, frames_to_decode, image_megapixels, video_gigapixels
from sightline.types import FRAMES, ImageHeader, MediaItem

Kind = Literal["image", "video", "pdf"]

MEGABYTE = 1_000_000


class RequestBudget:
    """What one request may bring, all its items together. May be used from several threads."""

    def __init__(self, limits: MediaConfig) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._items: Counter[str] = Counter()
        self._bytes = 0
        self._frames = 0
        self._megapixels = 0.0  # of work to decode images
        self._gigapixels = 0.0  # of videos to decode

    def take_items(self, kinds: Iterable[str]) -> None:
        """Adds items by kind; best called for the whole request before anything is fetched."""
        allowed = read_media_counts(self._limits.limit_mm_per_prompt)
        with self._lock:
            self._items.update(kinds)
            for kind, most in allowed.items():
                count = self._items[kind]
                if count > most:
                    items = kind if count == 1 else f"{kind}s"
                    raise MediaError(f"The request has {count} {items}, more than the {most} allowed (--limit-mm-per-prompt).")

    def bytes_left(self) -> int:
        return max(self._limits.max_request_media_mb * MEGABYTE - self._bytes, 0)

    def take_bytes(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._bytes > self._limits.max_request_media_mb * MEGABYTE:
                raise self.too_many_bytes()

    def too_many_bytes(self) -> MediaError:
        return MediaError(
            "The images and videos of the request have more than the "
            f"{self._limits.max_request_media_mb} MB allowed together (--max-request-media-mb)."
        )

    def take_item(self, item: MediaItem) -> None:
        """Adds what decoding an item will cost, and the frames of a video that the model sees.

        One that came without bytes is never decoded: its embeddings are known, or its request fails.
        """
        decoded = bool(item.ref.data)
        if isinstance(item.ref.header, ImageHeader):
            if decoded:
                self._take_image_work(image_megapixels(item.ref.header))
            return
        if decoded and item.ref.header.format == FRAMES:
            self._take_image_work(item.ref.header.still_megapixels)
        elif decoded:
            check_video_work(f"Video {item.ref.source}", item, self._limits)
            self._take_video_work(video_gigapixels(item))
        self.take_frames(len(item.frame_indices))

    def _take_image_work(self, megapixels: float) -> None:
        with self._lock:
            self._megapixels += megapixels
            if self._megapixels > self._limits.max_request_image_decode_mpx:
                raise MediaError(
                    f"The images of the request take {self._megapixels:,.0f} megapixels of work to decode, more than the "
                    f"{self._limits.max_request_image_decode_mpx:,} allowed together (--max-request-image-decode-mpx)."
                )

    def _take_video_work(self, gigapixels: float) -> None:
        with self._lock:
            self._gigapixels += gigapixels
            if self._gigapixels > self._limits.max_request_video_gigapixels:
                raise MediaError(
                    f"The videos of the request have {self._gigapixels:.1f} billion pixels to decode, more than the "
                    f"{self._limits.max_request_video_gigapixels} allowed together (--max-request-video-gigapixels)."
                )

    def take_frames(self, count: int) -> None:
        """Adds frames of a video that will be decoded and shown to the model."""
        with self._lock:
            self._frames += count
            if self._frames > self._limits.max_request_frames:
                raise MediaError(
                    f"The videos of the request have {self._frames:,} frames for the model to see, "
                    f"more than the {self._limits.max_request_frames:,} allowed (--max-request-frames)."
                )


class ByteAllowance:
    """Counts the bytes of one item as they arrive, against its own limit and against what the request has left."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        limits: MediaConfig,
        budget: RequestBudget | None = None,
    ) -> None:
        self.subject = f"{'PDF' if kind == 'pdf' else kind.capitalize()} {name}"
        self._megabytes = {"image": limits.max_image_mb, "video": limits.max_video_mb, "pdf": limits.max_pdf_mb}[kind]
        self._most = f"more than the {self._megabytes} MB allowed (--max-{kind}-mb)"
        self._budget = budget
        self._taken = 0

    @property
    def left(self) -> int:
        """The most bytes that can still be taken."""
        own = self._megabytes * MEGABYTE - self._taken
        return own if self._budget is None else min(own, self._budget.bytes_left())

    def check(self, size: int) -> None:
        """Raises if an item of so many bytes would be too large. Takes none."""
        if size > self._megabytes * MEGABYTE:
            raise MediaError(f"{self.subject} has {size / MEGABYTE:.1f} MB, {self._most}.")
        if self._budget is not None and size > self._budget.bytes_left():
            raise self._budget.too_many_bytes()

    def take(self, count: int) -> None:
        self._taken += count
        if self._taken > self._megabytes * MEGABYTE:
            raise MediaError(f"{self.subject} has {self._most}.")
        if self._budget is not None:
            self._budget.take_bytes(count)


def check_size(subject: str, width: int, height: int, limits: MediaConfig) -> None:
    """What a header says of width and height, before a pixel is decoded."""
    size = f"{subject} has {width}x{height} pixels"
    if width * height > limits.max_image_pixels:
        raise MediaError(f"{size}, more than the {limits.max_image_pixels:,} allowed (--max-image-pixels).")
    if min(width, height) < limits.min_image_side:
        raise MediaError(f"{size}, but each side must have at least {limits.min_image_side} (--min-image-side).")
    if max(width, height) > limits.max_aspect_ratio * min(width, height):
        raise MediaError(
            f"{size}, but one side may be {limits.max_aspect_ratio:g} times the other at most (--max-aspect-ratio)."
        )


def check_image_work(subject: str, header: ImageHeader, limits: MediaConfig) -> None:
    """What decoding an image would cost, whose file may be small."""
    megapixels = image_megapixels(header)
    if megapixels > limits.max_image_decode_mpx:
        times = f"{header.scans} scans" if header.format in JPEG_FORMATS else f"{header.channels} channels in {header.format}"
        raise MediaError(
            f"{subject} has {header.width}x{header.height} pixels in {times}, {megapixels:,.0f} megapixels of work to decode, "
            f"more than the {limits.max_image_decode_mpx:,} allowed (--max-image-decode-mpx)."
        )


def check_frame_count(subject: str, frames: int, most: int) -> None:
    """Called for each packet of a video, so that counting ends where the limit does."""
    if frames > most:
        raise MediaError(f"{subject} has more than the {most:,} frames allowed (--max-video-frames).")


def check_listed_frames(subject: str, frames: int, limits: MediaConfig) -> None:
    """Of a list of images, before any of them is looked at."""
    if frames > limits.max_request_frames:
        allowed = f"the {limits.max_request_frames:,} allowed (--max-request-frames)"
        raise MediaError(f"{subject} has {frames:,} frames, more than {allowed}.")


def check_video(subject: str, seconds: float, limits: MediaConfig) -> None:
    """How long a video plays."""
    if seconds > limits.max_video_seconds:
        allowed = f"the {limits.max_video_seconds:g} s allowed (--max-video-seconds)"
        raise MediaError(f"{subject} plays for {seconds:.1f} s, longer than {allowed}.")


def check_video_work(subject: str, item: MediaItem, limits: MediaConfig) -> None:
    """What decoding a video would cost, now that it is known which frames the model sees."""
    gigapixels = video_gigapixels(item)
    if gigapixels > limits.max_video_gigapixels:
        raise MediaError(
            f"{subject} has {gigapixels:.1f} billion pixels in the {frames_to_decode(item):,} frames to decode, "
            f"more than the {limits.max_video_gigapixels} allowed (--max-video-gigapixels)."
        )
