"""Items to decode, real ones and ones that only say how large they are, and decoders that are held open."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.encoder.decoding.job import Job
from sightline.encoder.decoding.pixels import Pixels, PixelState
from sightline.media.decoder_errors import DecodeCancelled
from sightline.types import ImageHeader, MediaItem, MediaRef, VideoHeader, View

MEGABYTE = 1_000_000
PATIENCE_S = 60.0


def still(name: str, megapixels: float = 1, scans: int = 1) -> MediaItem:
    """A JPEG that cannot be decoded. It takes 7 bytes a pixel, or 10 if it has several scans."""
    header = ImageHeader("JPEG", int(megapixels * 1000), 1000, 1, 3, scans)
    ref = MediaRef("image", b"?", name.encode(), header, name)
    return MediaItem(ref, name.encode(), (View.whole((32, 32)),), ((1, 2, 2),), (), (), 1)


def clip(name: str, frames: int, last: int) -> MediaItem:
    """A video of 1000x1000 of which so many frames are seen."""
    indices = tuple(int(index) for index in np.linspace(0, last, frames))
    ref = MediaRef("video", b"?", name.encode(), VideoHeader("mp4", 1000, 1000, last + 1, 30.0, (last + 1) / 30), name)
    return MediaItem(ref, name.encode(), (View.whole((32, 32)),), ((1, 2, 2),), indices, tuple(0.0 for _ in indices), 1)


class HeldDecodes:
    """Decodes that end when the test says so."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self._ended: dict[str, Exception | None] = {}
        self.open = False  # nothing is held any more

    def __call__(self, job: Job) -> Pixels:
        name = job.item.ref.source
        with self.changed:
            self.started.append(name)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.open or name in self._ended, PATIENCE_S)
            if job.cancellation():
                self.cancelled.append(name)
                raise DecodeCancelled
            fault = self._ended.get(name)
        if fault is not None:
            raise fault
        return Pixels(np.zeros((1, 10, 10, 3), np.uint8), 0.0)

    def end(self, *names: str, fault: Exception | None = None) -> None:
        with self.changed:
            self._ended.update(dict.fromkeys(names, fault))
            self.changed.notify_all()

    def end_all(self) -> None:
        with self.changed:
            self.open = True
            self.changed.notify_all()

    def wait_for(self, *names: str) -> None:
        """Until exactly these have started, in this order."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.started) >= len(names), PATIENCE_S)
            assert self.started == list(names)


@contextmanager
def opened(threads: int, memory_bytes: int, held: HeldDecodes | None = None) -> Iterator[MediaDecoder]:
    decoder = MediaDecoder(threads, memory_bytes)
    try:
        yield decoder
    finally:
        if held is not None:
            held.end_all()
        decoder.close()
        assert decoder.bytes_in_flight == 0


def wait_until_decoded(decoder: MediaDecoder, *items: MediaItem) -> list[PixelState]:
    while any(decoder.state(item) is PixelState.PENDING for item in items):
        assert decoder.wait(PATIENCE_S), "nothing came"
    return [decoder.state(item) for item in items]
