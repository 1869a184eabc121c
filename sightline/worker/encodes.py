"""Images and videos to embeddings: offloads and restores, patches, the tower, the arena.

In line with the steps, an encode is launched where a step would be, and every later step finds its embeddings. Beside them, it
has a stream of its own (the side stream) and is READY only when the device is done with it; JPEGs that the GPU decodes are then
decoded in a thread, because the library's call takes milliseconds in which steps could be launched.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from sightline.encoder.embeddings import arrange_embeddings, given_rows, repeat_frames, split_views
from sightline.encoder.gpu_decode import GpuDecoder
from sightline.encoder.graphs import TowerGraphs
from sightline.encoder.patch_maker import PatchMaker
from sightline.encoder.split_views import cut_pieces
from sightline.encoder.vision_parallel import SharedWork, VisionRanks
from sightline.models.model import VisionLanguageModel
from sightline.models.patch_tower import PatchTower
from sightline.timing import StageClock
from sightline.types import Grid, MediaItem
from sightline.worker.arena import EmbeddingArena
from sightline.worker.device_timer import DeviceTimer
from sightline.worker.out_of_memory import recover
from sightline.worker.step_input import EncodeInput, EncodeItem, EncodeOutput, WorkerFailure

Patches = Sequence["torch.Tensor | None"] | SharedWork  # of each item; None: the GPU cannot decode it


@dataclass
class _Encode:
    """One EncodeInput under way."""

    given: EncodeInput
    fresh: list[EncodeItem] = field(default_factory=list)  # those that go through the tower
    clock: StageClock = field(default_factory=StageClock)
    failed: dict[bytes, WorkerFailure] = field(default_factory=dict)
    patches: "Future[Patches] | None" = None  # while a thread makes them
    timer: DeviceTimer | None = None  # of the tower's run, if it ran
    done: "torch.cuda.Event | None" = None  # None: already, on a CPU

    def output(self, side_stream: bool) -> EncodeOutput:
        ready = tuple(item.key for item in self.given.items if item.key not in self.failed)
        seconds = dict(self.clock.seconds)
        if side_stream and self.timer is not None:
            seconds["encode"] = self.timer.seconds
        return EncodeOutput(self.given.number, ready, self.failed, seconds)


class Encodes:
    def __init__(
        self,
        model: VisionLanguageModel,
        arena: EmbeddingArena,
        patches: PatchMaker,
        most_patches: int,
        graphs: TowerGraphs | None = None,
        ranks: VisionRanks | None = None,
    ) -> None:
        """`ranks`: those that share the tower's work."""
        self._model, self._arena, self._maker = model, arena, patches
        self._most_patches, self._graphs, self._ranks = most_patches, graphs, ranks
        self._device = arena.rows.device
        self._side = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._jpegs = ThreadPoolExecutor(1, thread_name_prefix="jpeg") if self._side is not None else None
        self._decoding = threading.Lock()  # the library for JPEGs is called from one thread at a time
        self._asynchronous: deque[_Encode] = deque()  # in the order they were begun
        self._finished: list[EncodeOutput] = []
        self._timers: list[DeviceTimer] = []  # of towers in line, since a step was last launched

    # ---- Items

    def encode(self, given: EncodeInput) -> None:
        """Begins with the items; `poll` says what became of them."""
        if given.side_stream:
            self._encode_on_side_stream(given)
        else:
            self._encode_in_line(given)

    def _encode_in_line(self, given: EncodeInput) -> None:
        if self._side is not None and self._asynchronous:  # both use the tower's buffers
            torch.cuda.current_stream(self._device).wait_stream(self._side)
        encode = _Encode(given)
        try:
            self._move(encode)
            self._run_tower(encode, self._make_patches(encode))
        except Exception as error:  # not one item's fault, say out of memory
            self._fail_all(encode, error)
        if encode.timer is not None:
            self._timers.append(encode.timer)
        self._finished.append(encode.output(side_stream=False))

    def _encode_on_side_stream(self, given: EncodeInput) -> None:
        encode = _Encode(given)
        try:
            with self._side_stream():
                self._move(encode)
            if self._jpegs is not None and any(item.pixels is None for item in encode.fresh):
                encode.patches = self._jpegs.submit(self._make_patches_in_thread, encode)
            else:
                with self._side_stream():
                    self._run_tower(encode, self._make_patches(encode))
                    self._note_end(encode)
        except Exception as error:
            self._fail_on_side_stream(encode, error)
        self._asynchronous.append(encode)

    def poll(self, wait: bool = False) -> list[EncodeOutput]:
        """What became of encodes since this was last asked; those on the side stream in order, all of them if it may wait."""
        found, self._finished = self._finished, []
        for encode in self._asynchronous:  # towers are launched as soon as patches are there, whatever is at the front
            if encode.patches is not None and (wait or encode.patches.done()):
                self._launch_made(encode)
        while self._asynchronous and self._asynchronous[0].patches is None:
            done = self._asynchronous[0].done
            if done is not None and wait:
                done.synchronize()
            if done is not None and not done.query():
                break
            found.append(self._asynchronous.popleft().output(side_stream=True))
        return found

    def _launch_made(self, encode: _Encode) -> None:
        """Patches that a thread has made go through the tower."""
        assert encode.patches is not None
        made, encode.patches = encode.patches, None
        try:
            with self._side_stream():
                self._run_tower(encode, made.result())
                self._note_end(encode)
        except Exception as error:
            self._fail_on_side_stream(encode, error)

    def _fail_on_side_stream(self, encode: _Encode, error: Exception) -> None:
        if self._side is not None:  # what it was at may still write to slots that others get now
            torch.cuda.current_stream(self._device).wait_stream(self._side)
        self._fail_all(encode, error)

    @staticmethod
    def _fail_all(encode: _Encode, error: Exception) -> None:
        failure = WorkerFailure.of(recover(error))
        encode.failed = {item.key: failure for item in encode.given.items}

    def _side_stream(self) -> "torch.cuda.StreamContext | nullcontext[None]":
        """Beside what is computed, but after what is queued now: that may still read slots that are taken."""
        if self._side is None:
            return nullcontext()
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._side)

    def _note_end(self, encode: _Encode) -> None:
        encode.done = self._side.record_event() if self._side is not None else None

    def _move(self, encode: _Encode) -> None:
        """Offloads, restores, embeddings that came as such, drops; what is left goes through the tower."""
        for offload in encode.given.offloads:
            self._arena.save(offload.key, offload.slots)
        for item in encode.given.items:
            if item.for_tower:
                encode.fresh.append(item)
            elif not item.restore:
                self._arena.store(item.slots, given_rows(item.item.ref, self._device))
            elif not self._arena.restore(item.key, item.slots):  # an encode that failed did not save it
                encode.failed[item.key] = WorkerFailure("unsaved", f"Host memory does not have {item.item.ref.source}.")
        for key in encode.given.drops:
            self._arena.drop(key)

    def _make_patches_in_thread(self, encode: _Encode) -> Patches:
        assert self._side is not None
        with torch.inference_mode(), torch.cuda.stream(self._side):
            return self._make_patches(encode)

    def _make_patches(self, encode: _Encode) -> Patches:
        items, pixels = [item.distinct for item in encode.fresh], [item.pixels for item in encode.fresh]
        if self._ranks is not None:
            return self._ranks.prepare(items, pixels, self._maker, encode.clock)
        with self._decoding:
            return self._maker.make(items, pixels, encode.clock)

    @torch.inference_mode()
    def _run_tower(self, encode: _Encode, patches: Patches) -> None:
        good = encode.fresh
        if isinstance(patches, SharedWork):
            made: Sequence[torch.Tensor] | SharedWork = patches
        else:
            for item, of_item in zip(encode.fresh, patches, strict=True):
                if of_item is None:
                    encode.failed[item.key] = WorkerFailure("undecodable", f"The GPU cannot decode {item.item.ref.source}.")
            good = [item for item, of_item in zip(encode.fresh, patches, strict=True) if of_item is not None]
            made = [of_item for of_item in patches if of_item is not None]
        if good:
            encode.timer = DeviceTimer(self._device)
            with encode.timer:
                rows = self.encode_patches([item.item for item in good], made, [item.groups for item in good])
                self._arena.store(np.concatenate([item.slots for item in good]), rows)

    # ---- The tower

    def encode_patches(
        self,
        items: Sequence[MediaItem],
        patches: Sequence[torch.Tensor] | SharedWork,
        groups: Sequence[tuple[int, ...]] | None = None,
    ) -> torch.Tensor:
        """Embeddings of several items, one after another, [rows, width]; `groups` of each as in EncodeItem."""
        groups = groups or [()] * len(items)
        distinct = [item.cut_to(max(found) + 1) if found else item for item, found in zip(items, groups, strict=True)]
        if isinstance(patches, SharedWork):
            assert self._ranks is not None
            rows = self._ranks.encode(patches, self._run_pieces, self._run_pieces_together)
        else:
            views = [view for item, made in zip(distinct, patches, strict=True) for view in split_views(item, made)]
            rows = self._run_pieces(views, [grid for item in distinct for grid in item.grids])
        rows = repeat_frames(rows, distinct, groups, self._model.vision)
        return arrange_embeddings(rows, items, self._maker.processor, self._model.vision)

    def _run_pieces(self, views: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        found = [self._run_piece(parts, shapes) for parts, shapes in cut_pieces(views, grids, self._most_patches)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _run_pieces_together(self, views: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        """Over all ranks, each with a part of the patches."""
        tower = self._model.vision
        assert isinstance(tower, PatchTower) and self._ranks is not None
        with tower.together(self._ranks.group):
            pieces = cut_pieces(views, grids, self._most_patches)
            return torch.cat([self._model.encode(tower.make_batch(parts, shapes)) for parts, shapes in pieces])

    def _run_piece(self, patches: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        batch = self._model.vision.make_batch(patches, grids)
        rows = self._graphs.run(batch) if self._graphs is not None else None
        return rows if rows is not None else self._model.encode(batch)

    @torch.inference_mode()
    def embed(self, item: EncodeItem) -> torch.Tensor | None:
        """Embeddings of one item, [rows, width], past the arena; None if the GPU cannot decode it."""
        return self.embed_together([item])[0]

    @torch.inference_mode()
    def embed_together(self, items: Sequence[EncodeItem]) -> list[torch.Tensor | None]:
        """The same of several items, through the tower at once."""
        if self._side is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side)
        made = self._make_patches(_Encode(EncodeInput(0, tuple(items)), list(items)))
        if isinstance(made, SharedWork):
            return list(self._embed(items, made))
        rows = iter(
            self._embed(
                [item for item, patches in zip(items, made, strict=True) if patches is not None],
                [patches for patches in made if patches is not None],
            )
        )
        return [None if patches is None else next(rows) for patches in made]

    def _embed(self, items: Sequence[EncodeItem], patches: Sequence[torch.Tensor] | SharedWork) -> tuple[torch.Tensor, ...]:
        if not items:
            return ()
        rows = self.encode_patches([item.item for item in items], patches, [item.groups for item in items])
        parts: tuple[torch.Tensor, ...] = rows.split([item.item.rows for item in items])
        return parts

    # ---- What else the worker asks

    @property
    def busy(self) -> bool:
        """Whether something is under way on the side stream."""
        return bool(self._asynchronous)

    def take_timers(self) -> list[DeviceTimer]:
        taken, self._timers = self._timers, []
        return taken

    @property
    def gpu_decoder(self) -> GpuDecoder | None:
        return self._maker.gpu

    def capture_graphs(self, advance: Callable[[], None]) -> None:
        if self._graphs is not None:
            self._graphs.capture_all(advance)

    @property
    def captured_graphs(self) -> int:
        return 0 if self._graphs is None else len(self._graphs)

    def close(self) -> None:
        if self._jpegs is not None:
            self._jpegs.shutdown(wait=True, cancel_futures=True)
        if self._maker.gpu is not None:
            self._maker.gpu.close()
