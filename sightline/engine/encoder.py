"""The encoder as the engine sees it: items in, "ready" or "failed" out, in any order.

Where pixels come from is its business alone: files that the worker's GPU decodes go there as they are; all others are decoded
on the host, in threads or processes of the decoder's own, and reach the worker as pixels. Nothing here waits, but `wait`.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sightline.cache.embeddings import EmbeddingCache
from sightline.cache.keys import embedding_key
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.encoder.decoding.pixels import PixelState
from sightline.encoder.gpu_decode import GpuFiles
from sightline.engine.counts import Counts
from sightline.engine.executor import Executor
from sightline.errors import MediaError, MissingMediaError
from sightline.schedule.state import ScheduledEncode
from sightline.types import MediaItem
from sightline.worker.step_input import EncodeInput, EncodeItem, EncodeOutput, OffloadCopy

_MOST_REMEMBERED = 65_536  # files that the GPU could not decode
# The name of all decoders on the host: their pixels are Pillow's, bit for bit (tests/media/test_png_pixels.py).
_CPU = "cpu"
_NONE = "none"  # of embeddings that came as such


@dataclass
class EncodeResult:
    """What is known of items that were encoded together, or could not be."""

    ready: tuple[bytes, ...] = ()  # keys of embeddings
    encoded: tuple[bytes, ...] = ()  # of these, what went through the tower; the others were copied back
    failed: dict[bytes, Exception] = field(default_factory=dict)
    again: tuple[bytes, ...] = ()  # to be tried anew: what was to be copied back is gone, or another decoder makes it
    renamed: dict[bytes, bytes] = field(default_factory=dict)  # of those, keys that named the wrong decoder, and the right ones
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    in_line: bool = False


class Encoder:
    def __init__(self, executor: Executor, decoder: MediaDecoder, embeddings: EmbeddingCache, counts: Counts) -> None:
        self._executor, self._decoder, self._embeddings, self._counts = executor, decoder, embeddings, counts
        self._gpu_decoder, self._gpu_files = executor.facts.gpu_decoder, GpuFiles(executor.facts.gpu_kinds)
        self._numbers = itertools.count()
        self._under_way: dict[int, tuple[EncodeInput, float]] = {}  # by number; seconds that decoding took
        self._refused: list[EncodeResult] = []  # what never reached the worker
        self._for_cpu: OrderedDict[bytes, None] = OrderedDict()  # digests of files that the GPU could not decode
        self._with_bytes: dict[bytes, tuple[MediaItem, int]] = {}  # items of requests in progress that have bytes, by key

    # ---- Bytes: an item may be named by its digest alone; then they are those that another request has

    def hold(self, items: Iterable[MediaItem]) -> None:
        """Items of a request that has come."""
        for item in items:
            if item.ref.data:
                _, count = self._with_bytes.get(item.key, (item, 0))
                self._with_bytes[item.key] = item, count + 1

    def release(self, items: Iterable[MediaItem]) -> None:
        for item in items:
            if item.ref.data:
                held, count = self._with_bytes[item.key]
                if count > 1:
                    self._with_bytes[item.key] = held, count - 1
                else:
                    del self._with_bytes[item.key]

    def _complete(self, item: MediaItem) -> MediaItem:
        return item if item.ref.data else self._with_bytes.get(item.key, (item, 0))[0]

    # ---- Pixels

    def want(self, items: Iterable[MediaItem]) -> None:
        """What will be needed soon, most urgent first; the decoder forgets what is not among them any more."""
        self._decoder.want([item for item in map(self._complete, items) if not self._needs_no_pixels(item)])

    def pixels_pending(self, item: MediaItem) -> bool:
        """Whether encoding the item would have to wait for its pixels."""
        item = self._complete(item)
        return not self._needs_no_pixels(item) and self._decoder.state(item) is PixelState.PENDING

    def _needs_no_pixels(self, item: MediaItem) -> bool:
        """Without bytes it fails; the GPU decodes what it takes; embeddings are what pixels become."""
        return not item.ref.data or item.ref.is_embeddings or self.is_for_gpu(item)

    def is_for_gpu(self, item: MediaItem) -> bool:
        """Whether the worker's GPU decodes it: by its bytes and the configuration, but for files that the GPU has failed on."""
        return bool(self._gpu_decoder) and self._gpu_files.takes(item.ref) and item.ref.digest not in self._for_cpu

    def embedding_key(self, item: MediaItem) -> bytes:
        """With the name of the decoder that makes its pixels."""
        if item.ref.is_embeddings:
            return embedding_key(item.key, _NONE)
        return embedding_key(item.key, self._gpu_decoder if self.is_for_gpu(self._complete(item)) else _CPU)

    # ---- Encoding

    def submit(self, encodes: Sequence[ScheduledEncode]) -> None:
        """Items whose embeddings have their slots, and whose pixels are there. Those in line with the steps come first, and the
        first batch saves all that leaves the arena: what one reservation frees may be in another's slots."""
        in_line = [encode for encode in encodes if not encode.side_stream]
        side_stream = [encode for encode in encodes if encode.side_stream]
        if in_line:
            self._submit(in_line, False, encodes)
        if side_stream:
            self._submit(side_stream, True, () if in_line else encodes)

    def _submit(self, encodes: Sequence[ScheduledEncode], side_stream: bool, leaving: Sequence[ScheduledEncode]) -> None:
        items, refused, seconds = [], EncodeResult(in_line=not side_stream), 0.0
        for encode in encodes:
            try:
                found = self._item(encode)
                if isinstance(found, bytes):
                    refused.again += (encode.entry.key,)
                    refused.renamed[encode.entry.key] = found
                else:
                    items.append(found[0])
                    seconds += found[1]
            except MediaError as error:
                refused.failed[encode.entry.key] = error
        if refused.failed or refused.again:
            self._refused.append(refused)
        cache = self._embeddings
        given = EncodeInput(
            number=next(self._numbers),
            items=tuple(items),
            offloads=tuple(
                OffloadCopy(offload.key, cache.slots_of(offload.blocks, offload.rows))
                for encode in leaving
                for offload in encode.offloads
            ),
            drops=tuple(cache.host_evicted()),
            side_stream=side_stream,
        )
        if given.items or given.offloads or given.drops:
            self._under_way[given.number] = given, seconds
            self._executor.encode(given)

    def _item(self, encode: ScheduledEncode) -> tuple[EncodeItem, float] | bytes:
        """With its pixels, or with the bytes that the worker decodes; seconds that decoding took. Or the right key, if the one
        that it has names another decoder: it is from before the file's bytes were here, or before the GPU failed on it."""
        entry, item = encode.entry, self._complete(encode.item)
        slots = self._embeddings.row_slots(entry, 0, entry.rows)
        if encode.from_host:
            return EncodeItem(entry.key, slots, item.without_bytes(), restore=True), 0.0
        if not item.ref.data:
            raise MissingMediaError(
                f"{item.ref.kind.capitalize()} {item.ref.source} came without its data, and what was cached of it is gone; "
                "send it again."
            )
        key = self.embedding_key(item)
        if key != entry.key:
            return key
        if item.ref.is_embeddings:
            return EncodeItem(entry.key, slots, item), 0.0
        self._count(item)
        if self.is_for_gpu(item):
            return EncodeItem(entry.key, slots, item), 0.0
        pixels = self._decoder.take(item)
        return EncodeItem(entry.key, slots, item.without_bytes(), pixels.frames), pixels.seconds

    def poll(self, wait: bool = False) -> list[EncodeResult]:
        """What has become of items since this was last asked; with `wait`, of all that the worker is at."""
        found, self._refused = self._refused, []
        for output in self._executor.poll_encodes(wait):
            found.append(self._encoded(output))
        return found

    def _encoded(self, output: EncodeOutput) -> EncodeResult:
        given, decoded = self._under_way.pop(output.number)
        fresh = tuple(item.key for item in given.items if item.for_tower and item.key in output.ready)
        result = EncodeResult(output.ready, fresh, seconds=dict(output.seconds), in_line=not given.side_stream)
        if decoded:
            result.seconds["decode"] = result.seconds.get("decode", 0.0) + decoded
        again = []
        by_key = {item.key: item for item in given.items}
        for key, failure in output.failed.items():
            if failure.kind == "undecodable":
                item = by_key[key].item
                self._remember_for_cpu(item.ref.digest)
                result.renamed[key] = self.embedding_key(item)
            if failure.kind in ("undecodable", "unsaved"):
                again.append(key)
            else:
                result.failed[key] = failure.error()
        result.again = tuple(again)
        self._counts.note_encoded(given, output)
        return result

    def _remember_for_cpu(self, digest: bytes) -> None:
        self._for_cpu[digest] = None
        if len(self._for_cpu) > _MOST_REMEMBERED:
            self._for_cpu.popitem(last=False)

    def undecodable(self) -> list[tuple[MediaItem, MediaError]]:
        """Wanted items that the decoder has given up since this was last asked."""
        found = self._decoder.failed()
        for item, _ in found:
            self._count(item)
        return found

    def _count(self, item: MediaItem) -> None:
        self._counts.decoded += 1
        self._counts.videos_decoded += item.ref.kind == "video"

    def wait(self, timeout_s: float) -> None:
        """Until there are more pixels, or for so long."""
        self._decoder.wait(timeout_s)

    def close(self) -> None:
        self._decoder.close()
