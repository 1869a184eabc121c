"""Patches of many items at once: everyday JPEGs on the GPU, all others in threads on the CPU beside it."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from sightline.errors import MediaError, MissingMediaError
from sightline.spec import ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaItem, MediaRef
from sightline.vision.decode_ahead import DecodeAhead, Pixels
from sightline.vision.gpu_decode import GpuDecoder
from sightline.vision.patches import GROUP_BYTES, make_patches, make_patches_of_jpegs
from sightline.vision.pixel_room import PixelRoom

Made = torch.Tensor | MediaError  # [patches, features], or what is wrong with the item


class PatchMaker:
    def __init__(
        self,
        processor: ProcessorSpec,
        device: torch.device,
        dtype: torch.dtype,
        compact: bool,
        threads: ThreadPoolExecutor,
        gpu: GpuDecoder | None = None,
    ) -> None:
        self._processor, self._device, self._dtype, self._compact = processor, device, dtype, compact
        self._threads, self.gpu = threads, gpu
        self._room = PixelRoom(GROUP_BYTES)
        self.ahead = DecodeAhead(threads, elsewhere=self._is_for_gpu)

    def _is_for_gpu(self, ref: MediaRef) -> bool:
        return self.gpu is not None and self.gpu.takes(ref)

    def make(self, items: Sequence[MediaItem], clock: StageClock) -> tuple[list[Made], int]:
        """Patches or errors, in order, and how many of the items were decoded now rather than ahead."""
        # Pixels that are waited for below are in the threads' queue before those who wait: nobody waits for ever.
        ahead = [self.ahead.take(item) for item in items]
        jpegs = [place for place, item in enumerate(items) if ahead[place] is None and self._is_for_gpu(item.ref)]
        made: dict[int, Made] = {}
        waited: dict[int, Future[tuple[Made, StageClock]]] = {}
        for place in sorted(set(range(len(items))) - set(jpegs)):
            waited[place] = self._start(items[place], ahead[place], alone=len(items) == 1)
        if self.gpu is not None and jpegs:
            some = [items[place] for place in jpegs]
            found = make_patches_of_jpegs(some, self._processor.image, self.gpu, self._dtype, self._compact, clock)
            for place, patches in zip(jpegs, found, strict=True):
                if patches is not None:
                    made[place] = patches
                else:  # Pillow has the last word
                    waited[place] = self._start(items[place], None, alone=len(items) == 1)
        for place, future in waited.items():
            made[place], own = future.result()
            for stage, seconds in own.seconds.items():
                clock.add(stage, seconds)
        now = sum(pixels is None and bool(item.ref.data) for item, pixels in zip(items, ahead, strict=True))
        return [made[place] for place in range(len(items))], now

    def _start(self, item: MediaItem, pixels: "Future[Pixels] | None", alone: bool) -> "Future[tuple[Made, StageClock]]":
        """On the CPU in a thread, or, where that would only cost a hand-over, at once."""
        # A thread has a queue of the device of its own; its launches belong in the caller's.
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        if not alone:
            return self._threads.submit(self._one, item, pixels, stream)
        done: Future[tuple[Made, StageClock]] = Future()
        done.set_result(self._one(item, pixels, stream))
        return done

    def _one(
        self, item: MediaItem, pixels: "Future[Pixels] | None", stream: "torch.cuda.Stream | None"
    ) -> tuple[Made, StageClock]:
        clock = StageClock()
        if not item.ref.data:
            return MissingMediaError(
                f"{item.ref.kind.capitalize()} {item.ref.source} came without its data, and what was cached of it is gone; "
                "send it again."
            ), clock
        spec = self._processor.image if item.ref.kind == "image" else self._processor.video
        try:
            with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
                return make_patches(item, spec, self._device, self._dtype, self._compact, clock, pixels, self._room), clock
        except MediaError as error:
            return error, clock
