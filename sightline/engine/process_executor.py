"""Workers in processes of their own, as the engine sees them: one, or one a GPU that hold a model together (ranks).

All ranks are told the same, in the same order; the first says what steps brought, and an encode is done when all say so.
Nothing here waits for them but to collect. If one dies, the next call raises WorkerDied: what was on the device is gone, and
the engine with it and the other ranks; whoever watches the engine starts another.
"""

import os
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
import zmq

from sightline.config import Config
from sightline.encoder.decoding import shared_memory
from sightline.engine.worker_process import WorkerProcess
from sightline.errors import ConfigError, WorkerError
from sightline.parallel.rank_info import RankInfo
from sightline.timing import StageClock
from sightline.wire import to_frames
from sightline.worker.facts import WorkerFacts
from sightline.worker.load import ProgressCallback
from sightline.worker.messages import (
    Advanced,
    Broken,
    CaptureGraphs,
    Embed,
    Embedded,
    Encode,
    Encoded,
    End,
    FromWorker,
    GiveMemoryBack,
    GpuMemory,
    GraphsCaptured,
    Load,
    Loaded,
    Output,
    SharedPixels,
    Submit,
    SubmitMasks,
    ToWorker,
    WorkerRefused,
)
from sightline.worker.step_input import (
    EncodeInput,
    EncodeItem,
    EncodeOutput,
    GrammarMasks,
    StepInput,
    StepOutput,
)

_POLL_MS = 50  # how soon a death is seen
_LAST_WORDS_S = 2.0  # for a rank that was killed to be known as that, when others say that they lost it
M = TypeVar("M")


class WorkerDied(WorkerError):
    """A process that held the model, or a part of it, is gone."""


class ProcessExecutor:
    def __init__(self, config: Config, progress: ProgressCallback | None, clock: StageClock) -> None:
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._ranks: list[WorkerProcess] = []
        self._loaded = self._ended = False
        self._steps: deque[int] = deque()  # numbers of steps whose output has not been collected
        self._outputs: dict[int, StepOutput] = {}
        self._encodes: dict[int, bool] = {}  # numbers of encodes under way: whether they are in line with steps
        self._awaited: dict[int, int] = {}  # of these, from how many ranks
        self._encoded: list[EncodeOutput] = []
        self._descriptors: dict[int, list[int]] = {}  # of pixels in shared memory, by number of the encode
        self._replies: list[tuple[int, Loaded | Embedded | GraphsCaptured]] = []  # with the rank
        self._progress: Callable[[int, int], None] = lambda done, total: None
        self.captured_graphs = self.gpu_bytes = 0
        size = config.engine.tensor_parallel_size
        self._meeting = Path(tempfile.gettempdir()) / f"sightline-{secrets.token_urlsafe(6)}.ranks"
        try:
            for rank in range(size):
                name = "worker process" if size == 1 else f"worker process of rank {rank} of {size}"
                self._ranks.append(WorkerProcess(self._context, name))
                self._poller.register(self._ranks[-1].socket, zmq.POLLIN)
            self.facts: WorkerFacts = self._load(config, progress, clock)
            self._loaded = True
        except BaseException:
            self.close()
            raise
        finally:
            self._meeting.unlink(missing_ok=True)

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def _load(self, config: Config, progress: ProgressCallback | None, clock: StageClock) -> WorkerFacts:
        def advanced(done: int, total: int) -> None:
            clock.advance()
            if progress is not None and total:
                progress(done, total)

        self._progress = advanced
        began = time.perf_counter()
        size = len(self._ranks)
        for number, rank in enumerate(self._ranks):
            info = RankInfo(number, size, str(self._meeting)) if size > 1 else None
            rank.send(to_frames(Load(config, info)))
        loaded, *_ = self._reply(Loaded)
        for stage, seconds in loaded.seconds.items():
            clock.add(stage, seconds)
        clock.add("worker process", time.perf_counter() - began - sum(loaded.seconds.values()))
        return loaded.facts

    # ---- Steps

    def submit(self, step: StepInput) -> None:
        self._steps.append(step.number)
        self._send(Submit(step))

    def submit_masks(self, masks: GrammarMasks) -> None:
        self._send(SubmitMasks(masks))

    @property
    def ready(self) -> bool:
        self._read(0)
        return self._steps[0] in self._outputs

    def collect(self) -> StepOutput:
        number = self._steps.popleft()
        while number not in self._outputs:
            self._read(_POLL_MS)
        return self._outputs.pop(number)

    # ---- Encodes

    def encode(self, given: EncodeInput) -> None:
        self._encodes[given.number] = not given.side_stream
        self._awaited[given.number] = len(self._ranks)
        items, pixels = self._share(given.items)
        self._descriptors[given.number] = [shared.descriptor for shared in pixels]
        self._send(Encode(replace(given, items=items), pixels))

    def poll_encodes(self, wait: bool) -> list[EncodeOutput]:
        self._read(0)
        while any(self._encodes.values()) or (wait and self._encodes):
            self._read(_POLL_MS)
        found, self._encoded = self._encoded, []
        return found

    def embed(self, item: EncodeItem) -> torch.Tensor | None:
        items, pixels = self._share((item,))
        self._send(Embed(items[0], pixels))
        rows = self._reply(Embedded)[0].rows
        _close([shared.descriptor for shared in pixels])
        return None if rows is None else torch.from_numpy(rows.copy())

    @staticmethod
    def _share(items: Sequence[EncodeItem]) -> tuple[tuple[EncodeItem, ...], tuple[SharedPixels, ...]]:
        """The items without their pixels, and these in memory that the worker can open while the descriptors are."""
        shared = []
        for index, item in enumerate(items):
            if item.pixels is not None:
                frames, height, width, channels = item.pixels.shape
                descriptor = shared_memory.create(item.pixels.nbytes)
                shared_memory.as_array(descriptor, item.pixels.shape)[:] = item.pixels
                shared.append(SharedPixels(index, descriptor, (frames, height, width, channels)))
        return tuple(replace(item, pixels=None) for item in items), tuple(shared)

    # ---- What else the engine asks

    def capture_graphs(self, advance: Callable[[], None]) -> None:
        self._progress = lambda done, total: advance()
        self._send(CaptureGraphs())
        self.captured_graphs = self._reply(GraphsCaptured)[0].count

    def give_memory_back(self) -> None:
        self._send(GiveMemoryBack())

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            # Else those that are left wait for the one that is gone, or still load what nobody wants any more.
            whole = self._loaded and all(rank.end is None for rank in self._ranks)
            for rank in self._ranks:
                if whole:
                    rank.send(to_frames(End()))
            for rank in self._ranks:
                rank.wait(ends_itself=whole)
        for descriptors in self._descriptors.values():
            _close(descriptors)
        self._descriptors.clear()
        self._context.term()

    # ---- Messages

    def _send(self, message: ToWorker) -> None:
        frames = to_frames(message)
        for rank in self._ranks:
            rank.send(frames)

    def _reply(self, kind: type[M]) -> list[M]:
        """Of every rank, in order."""
        while True:
            found = [(rank, reply) for rank, reply in self._replies if isinstance(reply, kind)]
            if len(found) == len(self._ranks):
                self._replies = [pair for pair in self._replies if pair not in found]
                return [reply for _, reply in sorted(found, key=lambda pair: pair[0])]
            self._read(_POLL_MS)

    def _read(self, timeout_ms: int) -> None:
        """Takes in all that has come; waits for something for so long."""
        if timeout_ms and not self._poller.poll(timeout_ms):
            self._check_alive()
        for number, rank in enumerate(self._ranks):
            for message in rank.received():
                self._take(message, number)

    def _check_alive(self) -> None:
        for rank in self._ranks:
            if (end := rank.end) is not None:
                raise WorkerDied(self._cause() or end)

    def _cause(self) -> str | None:
        """Ranks that lose another one say so; what happened to that one is what matters."""
        return next((rank.end for rank in self._ranks if rank.was_killed), None)

    def _take(self, message: FromWorker, rank: int) -> None:
        if isinstance(message, Output):
            self._outputs[message.output.number] = message.output
        elif isinstance(message, Encoded):
            self._take_encoded(message.output)
        elif isinstance(message, Advanced):
            if rank == 0:
                self._progress(message.done, message.total)
        elif isinstance(message, GpuMemory):
            if rank == 0:
                self.gpu_bytes = message.gpu_bytes
        elif isinstance(message, WorkerRefused):
            raise ConfigError(message.message)
        elif isinstance(message, Broken):
            self._break(message, rank)
        else:
            self._replies.append((rank, message))

    def _take_encoded(self, output: EncodeOutput) -> None:
        """Its embeddings are there when every rank has them."""
        number = output.number
        self._awaited[number] -= 1
        if not self._awaited[number]:
            del self._awaited[number], self._encodes[number]
            _close(self._descriptors.pop(number))
            self._encoded.append(output)

    def _break(self, message: Broken, rank: int) -> None:
        until = time.monotonic() + _LAST_WORDS_S
        while self._cause() is None and time.monotonic() < until:
            time.sleep(0.01)
        raise WorkerDied(self._cause() or f"The {self._ranks[rank].name} cannot go on: {message.message.rstrip('.')}.")


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
