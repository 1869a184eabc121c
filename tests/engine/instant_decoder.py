"""A decoder that is done at once: what a step does then depends on no thread. It stands for encoder/decoding/decoder.py."""

import time
from collections.abc import Iterable

from sightline.encoder.decoding.pixels import Pixels, PixelState
from sightline.errors import MediaError
from sightline.media import decode
from sightline.types import MediaItem


class InstantDecoder:
    def __init__(self) -> None:
        self._found: dict[bytes, tuple[MediaItem, Pixels | MediaError]] = {}
        self._news: list[tuple[MediaItem, MediaError]] = []
        self.decoded = 0

    def __len__(self) -> int:
        return len(self._found)

    def want(self, items: Iterable[MediaItem]) -> None:
        wanted = {item.key: item for item in items}
        self._found = {key: found for key, found in self._found.items() if key in wanted}
        for key, item in wanted.items():
            if key not in self._found:
                self._found[key] = item, self._decoded(item)

    def _decoded(self, item: MediaItem) -> Pixels | MediaError:
        start = time.perf_counter()
        self.decoded += 1
        try:
            if item.ref.kind == "image":
                frames = decode.decode_image(item.ref)[None]
            else:
                frames = decode.decode_video(item.ref, item.frame_indices)
            return Pixels(frames, time.perf_counter() - start)
        except MediaError as error:
            self._news.append((item, error))
            return error

    def state(self, item: MediaItem) -> PixelState:
        found = self._found.get(item.key)
        if found is None:
            return PixelState.PENDING
        return PixelState.READY if isinstance(found[1], Pixels) else PixelState.FAILED

    def take(self, item: MediaItem) -> Pixels:
        _, found = self._found.pop(item.key)
        if isinstance(found, MediaError):
            raise found
        return found

    def failed(self) -> list[tuple[MediaItem, MediaError]]:
        news, self._news = self._news, []
        return news

    def wait(self, timeout_s: float) -> bool:
        return False

    def close(self) -> None:
        pass
