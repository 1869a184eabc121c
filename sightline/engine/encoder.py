"""The encoder as the engine sees it: items in, "ready" or "failed" out, in any order.

Where pixels come from is its business alone: files that the worker's GPU decodes go there as they are; all others are decoded
on the host, in threads or processes of the decoder's own, and reach the worker as pixels. Where another server runs the tower
(engine/remote/), files go there, and their embeddings reach the worker instead. Nothing here waits, but `wait`.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sightline.cache.embeddings import EmbeddingCache
from sightline.cache.keys import embedding_key
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.encoder.decoding.pixels import PixelState
from sightline.encoder.gpu_decode import GpuFiles
from sightline.engine.counts import Counts
from sightline.engine.executor import Executor
from sightline.engine.remote.client import RemoteCounts, RemoteEncoder
from sightline.engine.remote.wire import is_plain_file
from sightline.errors import MediaError, MissingMediaError
from sightline.schedule.state import ScheduledEncode
from sightline.types import EMBEDDINGS, EmbeddingsHeader, MediaItem
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
        self._remote: RemoteEncoder | None = None
        self._remote_files = GpuFiles(())  # that the other server's GPU decodes
        self._remote_seconds: dict[bytes, float] = {}  # of embeddings on their way to the worker, what they took, by their key
        self._encoded_here: OrderedDict[bytes, None] = OrderedDict()  # keys of items that the other server did not encode

    # ---- Another server that runs the tower

    def use(self, remote: RemoteEncoder) -> None:
        """From now on what it takes is encoded there."""
        self._remote = remote
        self._note_other()

    @property
    def remote_counts(self) -> RemoteCounts:
        return self._remote.counts if self._remote is not None else RemoteCounts()

    @property
    def remote_is_up(self) -> bool:
        return self._remote is not None and self._remote.up

    def sources_changed(self) -> bool:
        """Whether items go elsewhere than they did when this was last asked: `want` should be told what is wanted."""
        if self._remote is None or not self._remote.has_changed():
            return False
        self._note_other()
        return True

    def _note_other(self) -> None:
        """Its decoder may not be the one that it had before it was started again."""
        assert self._remote is not None
        if self._remote.other is not None:
            self._remote_files = GpuFiles(self._remote.other.kinds)

    def _goes_to(self, item: MediaItem) -> RemoteEncoder | None:
        """The other server, if it is to encode the item."""
        remote = self._remote
        if remote is None or not is_plain_file(item) or item.key in self._encoded_here:
            return None
        return remote if remote.up or remote.config.encoder_fallback == "refuse" else None

    def _remote_decoder(self, remote: RemoteEncoder, item: MediaItem) -> str:
        """Whose pixels the embeddings are of: what the answer says, before it is there what follows from the file."""
        found = remote.decoder_of(item)
        if found is not None:
            return found
        return remote.other.decoder if remote.other is not None and self._remote_files.takes(item.ref) else _CPU

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
        here, elsewhere = [], []
        for item in map(self._complete, items):
            if item.ref.data and self._goes_to(item) is not None:
                elsewhere.append(item)
            elif not self._needs_no_pixels(item):
                here.append(item)
        self._decoder.want(here)
        if self._remote is not None:
            self._remote.want(elsewhere)

    def pixels_pending(self, item: MediaItem) -> bool:
        """Whether encoding the item would have to wait for its pixels, or for its embeddings from elsewhere."""
        item = self._complete(item)
        if item.ref.data and (remote := self._goes_to(item)) is not None:
            return remote.state(item) is PixelState.PENDING
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
        item = self._complete(item)
        if (remote := self._goes_to(item)) is not None:
            return embedding_key(item.key, self._remote_decoder(remote, item))
        return embedding_key(item.key, self._gpu_decoder if self.is_for_gpu(item) else _CPU)

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
                    if found != encode.entry.key:
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
        """With its pixels, with the bytes that the worker decodes, or with embeddings from elsewhere; seconds that decoding
        took. Or the right key, if the one that it has names another decoder: it is from before the file's bytes were here, or
        before the GPU failed on it; or its own, if it is to be planned again, because it goes elsewhere than when it was."""
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
        if (remote := self._goes_to(item)) is not None:
            if remote.state(item) is PixelState.PENDING:
                return key
            try:
                rows = remote.take(item)
            except MediaError:
                if remote.config.encoder_fallback == "refuse":
                    raise
                self._encode_here(item)
                return key
            self._remote_seconds[entry.key] = rows.seconds
            return EncodeItem(entry.key, slots, _as_embeddings(item, rows.head.dtype, rows.head.shape, rows.data)), 0.0
        if self._remote is not None and not self.is_for_gpu(item) and self._decoder.state(item) is PixelState.PENDING:
            return key  # it was to come from elsewhere when this was planned
        self._count(item)
        if self.is_for_gpu(item):
            return EncodeItem(entry.key, slots, item), 0.0
        pixels = self._decoder.take(item)
        return EncodeItem(entry.key, slots, item.without_bytes(), pixels.frames, groups=pixels.groups), pixels.seconds

    def poll(self, wait: bool = False) -> list[EncodeResult]:
        """What has become of items since this was last asked; with `wait`, of all that the worker is at."""
        found, self._refused = self._refused, []
        for output in self._executor.poll_encodes(wait):
            found.append(self._encoded(output))
        return found

    def _encoded(self, output: EncodeOutput) -> EncodeResult:
        given, decoded = self._under_way.pop(output.number)
        elsewhere = {item.key: self._remote_seconds.pop(item.key, None) for item in given.items}
        fresh = tuple(
            item.key for item in given.items if (item.for_tower or elsewhere[item.key] is not None) and item.key in output.ready
        )
        for one in given.items:
            if one.key in output.ready:
                self._encoded_here.pop(one.item.key, None)
        result = EncodeResult(output.ready, fresh, seconds=dict(output.seconds), in_line=not given.side_stream)
        if decoded:
            result.seconds["decode"] = result.seconds.get("decode", 0.0) + decoded
        waited = max((seconds for seconds in elsewhere.values() if seconds is not None), default=0.0)
        if waited:
            result.seconds["encode"] = result.seconds.get("encode", 0.0) + waited
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
        return found + self._failed_elsewhere()

    def _failed_elsewhere(self) -> list[tuple[MediaItem, MediaError]]:
        """Those that are not encoded here either; here a broken file is told what is wrong with it."""
        remote, found = self._remote, []
        for item, error in remote.failed() if remote is not None else ():
            if remote is not None and remote.config.encoder_fallback == "local":
                self._encode_here(item)
                remote.note_change()
            else:
                found.append((item, error))
        return found

    def _encode_here(self, item: MediaItem) -> None:
        self._encoded_here[item.key] = None
        if len(self._encoded_here) > _MOST_REMEMBERED:
            self._encoded_here.popitem(last=False)

    def _count(self, item: MediaItem) -> None:
        self._counts.decoded += 1
        self._counts.videos_decoded += item.ref.kind == "video"

    def wake(self) -> None:
        """Whoever waits need wait no longer; for any thread."""
        self._decoder.wake()

    def wait(self, timeout_s: float) -> None:
        """Until there are more pixels, or for so long."""
        self._decoder.wait(timeout_s)

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()
        self._decoder.close()


def _as_embeddings(item: MediaItem, dtype: str, shape: tuple[int, int], data: bytes) -> MediaItem:
    """The item with its embeddings in place of its file."""
    header = item.ref.header
    given = EmbeddingsHeader(EMBEDDINGS, header.width, header.height, 1, dtype=dtype, shape=shape)
    return replace(item, ref=replace(item.ref, header=given, data=data))
