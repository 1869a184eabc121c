"""Media are decoded here, beside the engine, which names what it will need and asks what is ready.

```
want(items) ──► waiting ──room and a free decoder──► running ──► READY ──take──► the caller's
                                                        └──────► FAILED ──take──► raises
```

Two lanes, so that nothing small waits for anything large: cheap items are decoded in threads of this process, all others in
helper processes. Whatever `want` no longer names is cancelled: it never starts, or its process is killed, or its thread ends
between frames or blocks of the file.

Memory is one budget: what decodes in progress take, and pixels that nobody has taken yet. The large lane has at most three
quarters of it. An item larger than the share of its lane (three quarters, one quarter) runs when its lane is empty: only then
is the budget exceeded, by what that item needs beyond the share.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sightline.encoder.decoding.helper import Helper
from sightline.encoder.decoding.helper_pool import HelperPool
from sightline.encoder.decoding.job import Job, Lane, bytes_in_helper, bytes_in_thread, is_cheap
from sightline.encoder.decoding.pixels import Pixels, PixelState
from sightline.encoder.decoding.repeats import drop_repeats
from sightline.errors import MediaError, without_addresses
from sightline.media.decode import decode_image, video_frames
from sightline.media.decoder_errors import DecodeCancelled, check_cancelled, not_enough_memory
from sightline.media.png_pixels import get_ready
from sightline.types import PDF, ImageHeader, MediaItem

log = logging.getLogger("sightline.decoding")


class MediaDecoder:
    """Used by one thread. `decoded` counts items given to a decoder, `videos_decoded` the videos among them."""

    def __init__(self, threads: int, memory_bytes: int, page_limit_s: float | None = None, share_frames: bool = False) -> None:
        """`page_limit_s` is how long rendering one page of a PDF may take; `share_frames` drops repeated frames of videos."""
        helpers = max(1, threads // 4)
        self._memory_bytes = memory_bytes
        large_share = memory_bytes * 3 // 4
        self._small = Lane(threads, memory_bytes - large_share, memory_bytes)
        self._large = Lane(helpers, large_share, large_share)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._helpers = HelperPool(helpers)
        self._page_limit_s, self._share_frames = page_limit_s, share_frames
        self._lock = threading.RLock()
        self._jobs: dict[bytes, Job] = {}  # by key, most urgent first
        self._failed: list[Job] = []
        self._news = threading.Event()
        self.bytes_in_flight = 0
        self.decoded = 0
        self.videos_decoded = 0

    def get_ready(self) -> None:
        """Loads libraries that the first picture would have to wait for, in a thread."""
        self._threads.submit(get_ready)

    def want(self, items: Iterable[MediaItem]) -> None:
        """All that will be needed, most urgent first. What is not among them any more is cancelled and forgotten.

        An item that was taken and is still named is decoded again. To be called at least whenever something was taken.
        """
        with self._lock:
            before, self._jobs = self._jobs, {}
            for item in items:
                if item.key in self._jobs or not item.ref.data:
                    continue
                known = before.pop(item.key, None)
                if known is not None:
                    self._jobs[item.key] = known
                else:
                    self._jobs[item.key] = self._new_job(item)
            for job in before.values():
                self._forget(job)
            self._put_back_for_most_urgent()
            self._start_what_fits()

    def state(self, item: MediaItem) -> PixelState:
        job = self._jobs.get(item.key)
        return PixelState.PENDING if job is None else job.state

    def take(self, item: MediaItem) -> Pixels:
        """The pixels of an item that is READY; they are the caller's. Of one that FAILED, raises its MediaError."""
        with self._lock:
            job = self._jobs.pop(item.key)
            assert job.state is not PixelState.PENDING, f"{item.ref.source} is not decoded yet"
            pixels, error = job.pixels, job.error
            self._forget(job)
            self._start_what_fits()
        if error is not None:
            raise error
        assert pixels is not None
        return pixels

    def failed(self) -> list[tuple[MediaItem, MediaError]]:
        """Wanted items that failed since this was last asked."""
        with self._lock:
            news, self._failed = self._failed, []
            return [(job.item, job.error) for job in news if job.error is not None and self._jobs.get(job.item.key) is job]

    def wake(self) -> None:
        """Whoever waits need wait no longer: what it waits for came from elsewhere."""
        self._news.set()

    def wait(self, timeout_s: float) -> bool:
        """Until a wanted item becomes READY or FAILED, or has become so since the last wait; False if none does in time."""
        came = self._news.wait(timeout_s)
        if came:
            self._news.clear()
        return came

    def close(self) -> None:
        """Cancels everything, and returns when no thread decodes any more and no process is left."""
        self.want(())
        self._threads.shutdown()
        self._helpers.close()

    # ---- Memory

    def _new_job(self, item: MediaItem) -> Job:
        if is_cheap(item):
            return Job(item, self._small, bytes_in_thread(item))
        limit_s = self._page_limit_s if item.ref.header.format == PDF else None
        return Job(item, self._large, bytes_in_helper(item), limit_s)

    def _account(self, job: Job, count: int) -> None:
        """The job takes so many bytes from now on."""
        share = job.lane.share
        job.lane.charged += min(count, share) - min(job.bytes, share)
        self.bytes_in_flight += count - job.bytes
        job.bytes = count

    def _fits(self, job: Job, reserved: int) -> bool:
        """Whether there is room, if `reserved` bytes of the whole are for somebody else."""
        lane = job.lane
        if job.needed > lane.share and lane.charged:
            return False
        charged = self._small.charged + self._large.charged
        return lane.charged + job.charge <= lane.limit and charged + reserved + job.charge <= self._memory_bytes

    def _start_what_fits(self) -> None:
        """In the order of `want`. Within a lane nobody overtakes; small ones behind a large one that must wait go on."""
        lanes = [self._small, self._large]
        reserved = 0
        for job in self._jobs.values():
            if not job.waiting or job.lane not in lanes:
                continue
            if job.lane.running < job.lane.slots:
                if self._fits(job, reserved):
                    self._start(job)
                    continue
                if job.lane is self._large and job.lane.charged + job.charge <= job.lane.limit:
                    reserved = job.charge  # only small ones are in its way: they leave it what becomes free
            lanes.remove(job.lane)
            if not lanes:
                break

    def _put_back_for_most_urgent(self) -> None:
        """Ready pixels may be in the way of an item that is wanted before them, and a caller who takes in order waits for ever.

        If nothing of its lane is running, so that none of that will end by itself, the least urgent are let go, to be decoded
        again later. Only `want` does this: at any other time what is READY stays so until it is taken.
        """
        for lane in (self._small, self._large):
            jobs = list(self._jobs.values())
            first = next((index for index, job in enumerate(jobs) if job.lane is lane and job.waiting), None)
            if first is None or lane.running or self._fits(jobs[first], 0):
                continue
            behind = [job for job in jobs[first + 1 :] if job.state is PixelState.READY and job.bytes]
            if lane is self._small:
                behind = [job for job in behind if job.lane is lane]  # the large lane's share is never in its way
            if self._fits_without(jobs[first], behind):
                while not self._fits(jobs[first], 0):
                    self._put_back(behind.pop())

    def _fits_without(self, job: Job, others: list[Job]) -> bool:
        taken = [(other, other.bytes) for other in others]
        for other in others:
            self._account(other, 0)
        fits = self._fits(job, 0)
        for other, count in taken:
            self._account(other, count)
        return fits

    def _put_back(self, job: Job) -> None:
        self._account(job, 0)
        job.state, job.pixels = PixelState.PENDING, None

    # ---- Decoding

    def _start(self, job: Job) -> None:
        job.running = True
        job.lane.running += 1
        self._account(job, job.needed)
        self.decoded += 1
        self.videos_decoded += job.item.ref.kind == "video"
        if job.lane is self._small:
            self._threads.submit(self._run, job, lambda: _decode_here(job))
        else:
            self._helpers.submit(lambda helper: self._run(job, lambda: _decode_in(helper, job)))

    def _forget(self, job: Job) -> None:
        """Of a job that is running, the bytes are given back when it ends."""
        job.cancellation.request()
        if not job.running:
            self._account(job, 0)

    def _run(self, job: Job, decode: Callable[[], Pixels]) -> None:
        """In a thread of the lane."""
        pixels, error = None, None
        try:
            pixels = decode()
            if self._share_frames and job.item.frame_indices:
                pixels = drop_repeats(pixels, job.item.grids[0][0])
        except DecodeCancelled:
            pass
        except MediaError as fault:
            error = fault
        except MemoryError:
            error = not_enough_memory(f"{job.item.ref.kind.capitalize()} {job.item.ref.source}")
        except Exception as fault:  # a mistake of ours: the item fails, and nobody waits for it for ever
            log.exception("Decoding %s failed.", job.item.ref.source)
            error = MediaError(
                f"{job.item.ref.kind.capitalize()} {job.item.ref.source} cannot be decoded: {without_addresses(repr(fault))}."
            )
        with self._lock:
            self._end(job, pixels, error)

    def _end(self, job: Job, pixels: Pixels | None, error: MediaError | None) -> None:
        job.running = False
        job.lane.running -= 1
        if self._jobs.get(job.item.key) is not job:  # cancelled
            self._account(job, 0)
        elif error is not None:
            self._account(job, 0)
            job.error, job.state = error, PixelState.FAILED
            self._failed.append(job)
            self._news.set()
        else:
            assert pixels is not None
            self._account(job, 0 if _is_raw(job.item) else pixels.held_bytes)
            job.pixels, job.state = pixels, PixelState.READY
            self._news.set()
        self._start_what_fits()


def _is_raw(item: MediaItem) -> bool:
    """Whether the pixels are the bytes that were handed over, and take no memory of their own."""
    return isinstance(item.ref.header, ImageHeader) and item.ref.header.format == "RGB"


def _decode_here(job: Job) -> Pixels:
    check_cancelled(job.cancellation)
    began = time.perf_counter()
    ref = job.item.ref
    if ref.kind == "image":
        frames = decode_image(ref, job.cancellation)[None]
    else:
        frames = np.empty((len(job.item.frame_indices), ref.header.height, ref.header.width, 3), np.uint8)
        for index, frame in enumerate(video_frames(ref, job.item.frame_indices, job.cancellation)):
            frames[index] = frame
    return Pixels(frames, time.perf_counter() - began)


def _decode_in(helper: Helper, job: Job) -> Pixels:
    return helper.decode(job.item, job.needed, job.cancellation, job.limit_s)
