"""Pixels decoded before they are asked for, in threads, within a bound on memory."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from sightline.media.decode import decode_image
from sightline.types import MediaItem, MediaRef

Pixels = NDArray[np.uint8]  # [height, width, 3]


class DecodeAhead:
    def __init__(
        self,
        threads: ThreadPoolExecutor,
        most_bytes: int = 512 * 1024 * 1024,
        elsewhere: Callable[[MediaRef], bool] = lambda ref: False,
    ) -> None:
        """`elsewhere` says which stills are decoded by someone else: the GPU."""
        self._threads, self._most_bytes, self._elsewhere = threads, most_bytes, elsewhere
        self._found: dict[bytes, tuple[int, Future[Pixels]]] = {}  # by digest: bytes, pixels
        self.decoded = 0  # images given to the threads

    def __len__(self) -> int:
        return len(self._found)

    @property
    def bytes_held(self) -> int:
        return sum(size for size, _ in self._found.values())

    @property
    def unfinished(self) -> frozenset[bytes]:
        """Digests of wanted stills that are still being decoded."""
        return frozenset(digest for digest, (_, pixels) in self._found.items() if not pixels.done())

    def want(self, items: Iterable[MediaItem]) -> None:
        """Starts with these stills, the first ones first, as far as there is room; forgets what is not among them any more."""
        wanted: dict[bytes, MediaItem] = {}
        room = self._most_bytes
        for item in items:
            if item.ref.kind == "video" or not item.ref.data or item.ref.digest in wanted or self._elsewhere(item.ref):
                continue
            room -= _size(item)
            if room < 0:
                break
            wanted[item.ref.digest] = item
        for digest in [digest for digest in self._found if digest not in wanted]:
            self._found.pop(digest)[1].cancel()
        for digest, item in wanted.items():
            if digest not in self._found:
                self._found[digest] = _size(item), self._threads.submit(decode_image, item.ref)
                self.decoded += 1

    def take(self, item: MediaItem) -> "Future[Pixels] | None":
        """The pixels, or the error, if this was among the wanted; they are forgotten here."""
        found = self._found.pop(item.ref.digest, None)
        return None if found is None else found[1]


def _size(item: MediaItem) -> int:
    return 3 * item.ref.header.width * item.ref.header.height
