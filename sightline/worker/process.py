"""A worker in a process of its own; worker/main.py is its beginning.

It carries out messages in the order they come, and reports what steps and encodes brought as soon as the device is done. It
ends when it is told to, and with the process that started it. Of several ranks that hold a model together the first reports
what steps brought. A step that fails on one of them ends it, for the others wait for what it was to say.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import zmq

from sightline.encoder.decoding import shared_memory
from sightline.errors import UserError
from sightline.host_memory import keep_from_the_collector
from sightline.models.files import read_model_files
from sightline.parallel.board import RankBoard
from sightline.parallel.rank_info import RankInfo
from sightline.timing import StageClock
from sightline.wire import to_frames
from sightline.worker.load import load_worker
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
    to_worker,
)
from sightline.worker.out_of_memory import recover
from sightline.worker.step_input import EncodeItem, StepOutput, WorkerFailure
from sightline.worker.worker import Worker

_MEMORY_EVERY_S = 0.5
_IDLE_POLL_MS = 500
_ENDS_A_RANK = ("internal", "out_of_memory", "host_memory", "rank_lost")  # what others cannot know of
_BUSY_SLEEP_S = 50e-6  # between looks at the device and at the socket, while a step is under way


class RankBroken(Exception):
    """This rank could not do what the others count on."""

    def __init__(self, failure: WorkerFailure) -> None:
        super().__init__(failure.message)
        self.lost_rank = failure.kind == "rank_lost"


class WorkerServer:
    def __init__(self, worker: Worker, send: Callable[[FromWorker], None], engine: int, rank: RankInfo | None = None) -> None:
        self._worker, self._send, self._engine, self._rank = worker, send, engine, rank
        self._told_memory = time.monotonic()

    @property
    def busy(self) -> bool:
        return self._worker.busy or self._worker.encodes.busy

    def carry_out(self, message: ToWorker) -> bool:
        """False: it was the order to end."""
        worker = self._worker
        if isinstance(message, Submit):
            self._tell_failure(message.step.number, worker.submit(message.step))
        elif isinstance(message, SubmitMasks):
            if worker.waits_for_masks:  # else its step has failed
                self._tell_failure(message.masks.number, worker.submit_masks(message.masks))
        elif isinstance(message, Encode):
            items = self._with_pixels(message.given.items, message.pixels)
            worker.encodes.encode(replace(message.given, items=items))
        elif isinstance(message, Embed):
            (item,) = self._with_pixels((message.item,), message.pixels)
            rows = worker.encodes.embed(item)
            self._send(Embedded(None if rows is None else rows.float().cpu().numpy()))
        elif isinstance(message, CaptureGraphs):
            worker.capture_graphs(lambda: self._send(Advanced(0, 0)))
            self._send(GraphsCaptured(worker.captured_graphs))
        elif isinstance(message, GiveMemoryBack):
            worker.give_memory_back()
        return not isinstance(message, End)

    def _tell_failure(self, number: int, failure: WorkerFailure | None) -> None:
        if failure is not None:
            self._tell_output(StepOutput(number, failure=failure))

    def _tell_output(self, output: StepOutput) -> None:
        if self._rank is not None and output.failure is not None:
            raise RankBroken(output.failure)
        if self._rank is None or self._rank.rank == 0:
            self._send(Output(output))

    def _with_pixels(self, items: tuple[EncodeItem, ...], pixels: tuple[SharedPixels, ...]) -> tuple[EncodeItem, ...]:
        found = list(items)
        for shared in pixels:
            descriptor = os.open(f"/proc/{self._engine}/fd/{shared.descriptor}", os.O_RDWR)
            try:
                array = shared_memory.as_array(descriptor, shared.shape)
            finally:
                os.close(descriptor)
            found[shared.item] = replace(found[shared.item], pixels=array)
        return tuple(found)

    def report(self) -> None:
        """All that the device is done with."""
        while self._worker.busy and self._worker.ready:
            self._tell_output(self._worker.collect())
        for output in self._worker.encodes.poll():
            broken = [one for one in output.failed.values() if one.kind in _ENDS_A_RANK]
            if self._rank is not None and broken:
                raise RankBroken(broken[0])
            self._send(Encoded(output))
        now = time.monotonic()
        if now - self._told_memory >= _MEMORY_EVERY_S:
            self._told_memory = now
            self._send(GpuMemory(self._worker.gpu_bytes))


def load(message: Load, send: Callable[[FromWorker], None]) -> Worker:
    clock = StageClock()
    with clock.stage("files"):
        files = read_model_files(message.config.model, message.config.media)
    rank = message.rank
    if rank is not None and rank.board is not None:
        RankBoard(rank.board, rank.size).start_beating(rank.rank)
    worker, facts = load_worker(message.config, files, lambda done, total: send(Advanced(done, total)), clock, rank)
    keep_from_the_collector()
    send(Loaded(facts, clock.seconds))
    return worker


def serve(socket: "zmq.SyncSocket", engine: int) -> int:
    """The life of a worker process; its exit code. `engine`: the process whose open files messages name."""

    def send(message: FromWorker) -> None:
        socket.send_multipart(to_frames(message))

    def receive() -> ToWorker:
        return to_worker.decode([frame.buffer for frame in socket.recv_multipart(copy=False)])

    first = receive()
    assert isinstance(first, Load)
    try:
        worker = load(first, send)
    except UserError as error:
        send(WorkerRefused(str(error)))
        return 1
    except Exception as error:
        if first.rank is not None:
            failure = WorkerFailure.of(recover(error))
            send(Broken(failure.message, failure.kind == "rank_lost"))
            return 1
        raise
    server = WorkerServer(worker, send, engine, first.rank)
    try:
        while True:
            if not server.busy:
                socket.poll(_IDLE_POLL_MS)
            while socket.poll(0):
                if not server.carry_out(receive()):
                    return 0
            server.report()
            if server.busy:
                time.sleep(_BUSY_SLEEP_S)
    except RankBroken as error:
        send(Broken(str(error), error.lost_rank))
        return 1
    except Exception as error:
        if first.rank is None:
            raise
        failure = WorkerFailure.of(recover(error))
        send(Broken(failure.message, failure.kind == "rank_lost"))
        return 1
    finally:
        worker.close()
