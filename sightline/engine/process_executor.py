"""Workers in processes of their own, as the engine sees them: one, or one a GPU that hold a model together (ranks).

All ranks are told the same, in the same order; the first says what steps brought, and an encode is done when all say so.
Nothing here waits for them but to collect. If one dies, the next call raises WorkerDied: what was on the device is gone, and
the engine with it and the other ranks; whoever watches the engine starts another.
"""

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar

import torch
import zmq

from sightline.config import Config
from sightline.encoder.decoding import shared_memory
from sightline.engine.launched import LaunchedRanks
from sightline.engine.worker_process import WorkerProcess, start_child
from sightline.errors import ConfigError, WorkerError
from sightline.parallel.board import RankBoard, RankWatch
from sightline.parallel.launch import Launch
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
_SOONER = 0.8
_LAST_WORDS_S = 2.0  # for a rank that was killed to be known as that, when others say that they lost it
M = TypeVar("M")


class WorkerDied(WorkerError):
    """A process that held the model, or a part of it, is gone."""


class ProcessExecutor:
    def __init__(
        self, config: Config, progress: ProgressCallback | None, clock: StageClock, launch: Launch | None = None
    ) -> None:
        """`launch`: of torchrun's, which has started processes for ranks from 1 on."""
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._ranks: list[WorkerProcess] = []
        self._loaded = self._broken = self._ended = False
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
        self._limit_s = config.server.engine_timeout_s  # of ranks that do not advance; 0: none
        self._own_files: list[int] = []  # that ranks open by way of this process
        self._watch: RankWatch | None = None
        try:
            launched = None if launch is None else LaunchedRanks(launch)
            for rank in range(size):
                name = "worker process" if size == 1 else f"worker process of rank {rank} of {size}"
                start = start_child if launched is None or rank == 0 else functools.partial(launched.start, rank)
                self._ranks.append(WorkerProcess(self._context, name, start))
                self._poller.register(self._ranks[-1].socket, zmq.POLLIN)
            self.facts: WorkerFacts = self._load(config, progress, clock)
            self._loaded = True
        except BaseException:
            self.close()
            raise

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
        for rank, info in zip(self._ranks, self._introduce(), strict=True):
            rank.send(to_frames(Load(config, info)))
        loaded, *_ = self._reply(Loaded)
        for stage, seconds in loaded.seconds.items():
            clock.add(stage, seconds)
        clock.add("worker process", time.perf_counter() - began - sum(loaded.seconds.values()))
        return loaded.facts

    def _introduce(self) -> list[RankInfo | None]:
        """What each rank is told of the others. They meet in a file without a name: nobody has to remove it."""
        size = len(self._ranks)
        if size == 1:
            return [None]
        self._own_files = [os.memfd_create("sightline-ranks", os.MFD_CLOEXEC), shared_memory.create(RankBoard.size_for(size))]
        meeting, board = (f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._own_files)
        self._watch = RankWatch(RankBoard(board, size), time.monotonic())
        return [RankInfo(number, size, meeting, board) for number in range(size)]

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

    def check_alive(self) -> None:
        self._read(0)
        self._find_ended()

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            # Else those that are left wait for the one that is gone, or still load what nobody wants any more.
            whole = self._loaded and not self._broken and all(rank.end is None for rank in self._ranks)
            for rank in self._ranks:
                if whole:
                    rank.send(to_frames(End()))
            for rank in self._ranks:
                rank.wait(ends_itself=whole)
        for descriptors in self._descriptors.values():
            _close(descriptors)
        self._descriptors.clear()
        _close(self._own_files)
        self._own_files = []
        self._context.term()

    # ---- Messages

    def _send(self, message: ToWorker) -> None:
        frames = to_frames(message)
        for rank in self._ranks:
            rank.send(frames)
        if self._watch is not None:
            self._watch.begin(time.monotonic())

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
            self._find_ended()
            self._check_advancing()
        for number, rank in enumerate(self._ranks):
            for message in rank.received():
                self._take(message, number)

    def _find_ended(self) -> None:
        for rank in self._ranks:
            if (end := rank.end) is not None:
                self._end(self._cause() or end)

    def _check_advancing(self) -> None:
        if self._watch is not None and self._loaded and self._limit_s:
            # Sooner than the engine is judged to hang, of which nobody would know whose fault it is.
            hang = self._watch.hang(time.monotonic(), self._limit_s * _SOONER)
            if hang is not None:
                self._end(f"{hang} (engine_timeout_s is {self._limit_s:g}).")

    def _end(self, cause: str) -> NoReturn:
        self._broken = True  # ranks that are left are not asked to end: they may wait for the one that is gone
        raise WorkerDied(cause)

    def _cause(self) -> str | None:
        """Ranks that lose another one say so; what happened to that one is what matters."""
        return next((rank.end for rank in self._ranks if rank.was_killed), None)

    def _take(self, message: FromWorker, rank: int) -> None:
        if self._watch is not None and not isinstance(message, GpuMemory):
            self._watch.begin(time.monotonic())
        if isinstance(message, Output):
            self._outputs[message.output.number] = message.output
        elif isinstance(message, Encoded):
            self._take_encoded(message.output)
        elif isinstance(message, Advanced):
            if rank == 0 or not message.total:
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
        """Of a rank that lost another one it is waited for what became of that one: it was killed, or has something to say."""
        until = time.monotonic() + _LAST_WORDS_S
        while message.lost_rank and self._cause() is None and time.monotonic() < until:
            time.sleep(0.01)
            for other, process in enumerate(self._ranks):
                for said in process.received():
                    if isinstance(said, Broken) and not said.lost_rank:
                        message, rank = said, other
        self._end(self._cause() or f"The {self._ranks[rank].name} cannot go on: {message.message.rstrip('.')}.")


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
