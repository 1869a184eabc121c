"""The engine process of a server that encodes for others (--encoder-only): files in, embeddings out.

A request waits for its pixels, then goes through the tower with all others that have theirs, up to max_patches_per_step. Equal
items are encoded once, and their embeddings are kept in host memory, those unused for longest making room.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import Config, MediaConfig
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.encoder.decoding.pixels import PixelState
from sightline.encoder.gpu_decode import GpuFiles
from sightline.engine.counts import Counts
from sightline.engine.messages import (
    Abort,
    Done,
    EncodedRows,
    EncodeFile,
    Flush,
    FromEngine,
    MemoryReport,
    Ping,
    Ready,
    Stats,
    Stop,
    decode_command,
    encode,
)
from sightline.engine.process_failures import failure_of
from sightline.engine.remote.identity import identity_of
from sightline.engine.remote.wire import Dtype, Identity, RowsHead
from sightline.engine.warm_up import sample_jpeg
from sightline.media.decode import decode_image
from sightline.media.item import item_of
from sightline.media.source import load_image
from sightline.models.files import ModelFiles
from sightline.processors import choose_decode_threads
from sightline.timing import StageClock
from sightline.types import MediaItem
from sightline.worker.load import ProgressCallback
from sightline.worker.out_of_memory import recover
from sightline.worker.step_input import EncodeItem
from sightline.worker.tower import TowerWorker, load_tower

_WAIT_S = 0.002  # for pixels; commands wait as long
_STATS_EVERY_S = 0.5
_GB, _MB = 1024**3, 1024**2
_CPU_CACHE_GB, _GPU_CACHE_GB = 0.5, 4.0
_NO_SLOTS = np.empty(0, np.int64)
Frames = list[Any]


@dataclass(eq=False)
class _Job:
    item: MediaItem
    numbers: list[int]  # of requests that wait for it
    began: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class _Kept:
    head: RowsHead
    rows: NDArray[np.uint8]


class EncoderServer:
    """Carries out commands between batches. `send` takes the frames of a report to the API process."""

    def __init__(
        self, worker: TowerWorker, decoder: MediaDecoder, config: Config, identity: Identity, send: Callable[[Frames], object]
    ) -> None:
        self._worker, self._decoder, self._identity, self._send = worker, decoder, identity, send
        self._max_patches = config.engine.max_patches_per_step
        gigabytes = config.engine.embedding_cache_gb
        if gigabytes is None:
            gigabytes = _GPU_CACHE_GB if worker.device.startswith("cuda") else _CPU_CACHE_GB
        self._cache_bytes = int(gigabytes * _GB)
        self._gpu_files = GpuFiles(worker.gpu_kinds)
        self._jobs: OrderedDict[bytes, _Job] = OrderedDict()  # by key, in the order they came
        self._by_number: dict[int, bytes] = {}
        self._for_cpu: set[bytes] = set()  # keys of jobs whose files the GPU could not decode
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # longest unused first
        self._kept_bytes = 0
        self._counts = Counts()
        self._hits = self._misses = self._evictions = 0
        self._tower_seconds = 0.0
        self._changed = False
        self._told = time.monotonic()

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    # ---- Commands

    def command(self, frames: list[Any]) -> bool:
        """Carries out one command. False: it was the order to stop."""
        message = decode_command(*(frame.buffer for frame in frames))
        if isinstance(message, EncodeFile):
            self._add(message)
        elif isinstance(message, Abort):
            self._abort(message.number)
        elif isinstance(message, Flush):
            self._kept.clear()
            self._kept_bytes = 0
            self._report(Done(message.number))
        elif isinstance(message, Ping):
            self._report(self.stats())
            self._report(Done(message.number))
        return not isinstance(message, Stop)

    def _add(self, message: EncodeFile) -> None:
        key = message.item.key
        kept = self._kept.get(key)
        if kept is not None:
            self._hits += 1
            self._kept.move_to_end(key)
            self._answer(message.number, kept)
            return
        self._by_number[message.number] = key
        if key in self._jobs:
            self._hits += 1
            self._jobs[key].numbers.append(message.number)
            return
        self._misses += 1
        self._jobs[key] = _Job(message.with_data(), [message.number])
        self._changed = True

    def _abort(self, number: int) -> None:
        """What nobody waits for any more is not encoded."""
        job = self._jobs.get(self._by_number.pop(number, b""))
        if job is not None:
            job.numbers.remove(number)
            if not job.numbers:
                del self._jobs[job.item.key]
                self._for_cpu.discard(job.item.key)
                self._changed = True

    # ---- A batch

    def step(self) -> None:
        if self._changed:
            self._changed = False
            self._decoder.want([job.item for job in self._jobs.values() if not self._is_for_gpu(job)])
        for item, error in self._decoder.failed():
            self._count_decoded(item)
            self._fail(item.key, error)
        batch = self._next_batch()
        if batch:
            self._encode(batch)
        elif self._jobs:
            self._decoder.wait(_WAIT_S)
        self._tell_stats()

    def _is_for_gpu(self, job: _Job) -> bool:
        return bool(self._worker.gpu_decoder) and job.item.key not in self._for_cpu and self._gpu_files.takes(job.item.ref)

    def _next_batch(self) -> list[_Job]:
        """All that have their pixels, in the order they came, as far as patches allow; a larger one goes alone."""
        found: list[_Job] = []
        left = self._max_patches
        for job in self._jobs.values():
            if not self._is_for_gpu(job) and self._decoder.state(job.item) is not PixelState.READY:
                continue
            if found and job.item.patches > left:
                break
            found.append(job)
            left -= job.item.patches
        return found

    def _encode(self, batch: list[_Job]) -> None:
        items: list[EncodeItem] = []
        decoders: list[str] = []
        for job in batch:
            on_gpu = self._is_for_gpu(job)
            pixels = None if on_gpu else self._decoder.take(job.item).frames
            self._count_decoded(job.item)
            decoders.append(self._worker.gpu_decoder if on_gpu else "cpu")
            items.append(EncodeItem(job.item.key, _NO_SLOTS, job.item if on_gpu else job.item.without_bytes(), pixels))
        self._changed = True  # what was taken is wanted no more
        began = time.perf_counter()
        for job, decoder, rows in zip(batch, decoders, self._embed(items), strict=True):
            if isinstance(rows, Exception):
                self._fail(job.item.key, rows)
            elif rows is None:
                self._for_cpu.add(job.item.key)
            else:
                self._finish(job, decoder, rows)
        self._tower_seconds += time.perf_counter() - began

    def _embed(self, items: list[EncodeItem]) -> list[NDArray[np.uint8] | Exception | None]:
        """Where a batch fails each is tried alone, so that one that cannot be encoded costs nobody else."""
        try:
            return list(self._worker.embed(items))
        except Exception as error:
            told = recover(error)
            return [told] if len(items) == 1 else [found for item in items for found in self._embed([item])]

    def _finish(self, job: _Job, decoder: str, rows: NDArray[np.uint8]) -> None:
        dtype: Dtype = self._worker.dtype  # type: ignore[assignment]
        shape = (job.item.rows, self._identity.width)
        kept = _Kept(RowsHead(job.item.ref.digest, dtype, shape, decoder, time.perf_counter() - job.began), rows)
        self._counts.encoded += 1
        self._counts.videos_encoded += job.item.ref.kind == "video"
        self._counts.patches += job.item.patches
        for number in self._drop(job.item.key):
            self._answer(number, kept)
        self._keep(job.item.key, kept)

    def _keep(self, key: bytes, kept: _Kept) -> None:
        if kept.rows.nbytes > self._cache_bytes:
            return
        while self._kept_bytes + kept.rows.nbytes > self._cache_bytes:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= gone.rows.nbytes
            self._evictions += 1
        self._kept[key] = kept
        self._kept_bytes += kept.rows.nbytes

    def _fail(self, key: bytes, error: Exception) -> None:
        for number in self._drop(key):
            self._report(EncodedRows(number, failure=failure_of(error)))

    def _drop(self, key: bytes) -> list[int]:
        """The job is over; who waited for it."""
        job = self._jobs.pop(key)
        self._for_cpu.discard(key)
        for number in job.numbers:
            del self._by_number[number]
        return job.numbers

    def _answer(self, number: int, kept: _Kept) -> None:
        self._send([encode(EncodedRows(number, kept.head)), kept.rows])

    # ---- What it counts

    def _count_decoded(self, item: MediaItem) -> None:
        self._counts.decoded += 1
        self._counts.videos_decoded += item.ref.kind == "video"

    def _report(self, report: FromEngine) -> None:
        self._send([encode(report)])

    def _tell_stats(self) -> None:
        now = time.monotonic()
        if now - self._told >= _STATS_EVERY_S:
            self._told = now
            self._report(self.stats())

    def idle(self) -> None:
        self._tell_stats()

    def stats(self) -> Stats:
        """Of a server without a language model most is nothing."""
        known: dict[str, float] = {
            "pages": 1,  # of which none is used
            "waiting": len(self._jobs),
            "embedding_hits": self._hits,
            "embedding_misses": self._misses,
            "embedding_evictions": self._evictions,
            "host_bytes_used": self._kept_bytes,
            "items_decoded": self._counts.decoded,
            "items_encoded": self._counts.encoded,
            "videos_decoded": self._counts.videos_decoded,
            "videos_encoded": self._counts.videos_encoded,
            "patches_encoded": self._counts.patches,
            "tower_seconds": self._tower_seconds,
            "graphs": self._worker.encodes.captured_graphs,
        }
        return Stats(**{name: known.get(name, 0) for name in Stats.__struct_fields__})  # type: ignore[arg-type]

    def ready_report(self, max_model_len: int, load_stages: dict[str, float]) -> Ready:
        worker = self._worker
        return Ready(
            device=worker.device,
            dtype=worker.dtype,
            max_model_len=max_model_len,
            memory=MemoryReport(worker.weights_bytes, 0, 0, 0, 0, self._cache_bytes),
            load_stages=load_stages,
            gpu_decoder=worker.gpu_decoder,
            gpu_kinds=worker.gpu_kinds,
            identity=self._identity,
        )

    def close(self) -> None:
        self._decoder.close()
        self._worker.close()


def load_encoder_server(
    config: Config, files: ModelFiles, send: Callable[[Frames], object], progress: ProgressCallback, clock: StageClock
) -> EncoderServer:
    worker = load_tower(config, files, progress, clock)
    threads = choose_decode_threads(config.engine.decode_threads)
    decoder = MediaDecoder(threads, config.engine.decode_memory_mb * _MB, config.media.max_pdf_seconds)
    identity = identity_of(config, files, worker.digest, worker.dtype, worker.gpu_decoder, worker.gpu_kinds)
    if config.engine.warm_up or (config.engine.warm_up is None and worker.device.startswith("cuda")):
        with clock.stage("graphs"):
            worker.capture_graphs(clock.advance)
        with clock.stage("first images"):
            _warm_up(worker, files)
    return EncoderServer(worker, decoder, config, identity, send)


def _warm_up(worker: TowerWorker, files: ModelFiles) -> None:
    """Kernels are compiled and libraries loaded at first use."""
    item = item_of(load_image(sample_jpeg(), MediaConfig()), files.processor)
    worker.embed([EncodeItem(item.key, _NO_SLOTS, item, decode_image(item.ref)[None])])
    if worker.gpu_decoder and GpuFiles(worker.gpu_kinds).takes(item.ref):
        worker.embed([EncodeItem(item.key, _NO_SLOTS, item)])
