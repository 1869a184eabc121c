"""An engine in a process of its own, for `sightline serve`: `python -m sightline.engine.process ADDRESS`.

The loop is that of engine/thread.py: all commands that have come, then a step, whose news go out as one message. The process
ends when it is told to, when the process that started it is gone, or when the engine breaks, which is a crash that the API
process sees by the exit code.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import zmq

from sightline.engine.activation_peak import NO_PEAKS
from sightline.engine.engine import Engine, Update
from sightline.engine.kept_files import KeptFiles
from sightline.engine.load import load_engine
from sightline.engine.messages import (
    Abort,
    Add,
    Done,
    Failure,
    Finish,
    Flush,
    FromEngine,
    Memory,
    News,
    Ping,
    Progress,
    Ready,
    Refused,
    Start,
    Stats,
    Stop,
    UpdateHead,
    decode_command,
    encode,
    request_of,
)
from sightline.errors import MissingMediaError, OutOfMemoryError, UserError
from sightline.host_memory import keep_freed_memory, keep_from_the_collector
from sightline.models.files import read_model_files
from sightline.models.fp8_summary import summarise
from sightline.timing import StageClock
from sightline.types import Completion

CHECK_EVERY_S = 60.0  # an idle engine looks at its books this often
STATS_EVERY_S = 0.5
_POLL_MS = 500  # how soon an idle process sees that its parent is gone


class EngineServer:
    """Carries out commands between steps. `send` takes a report to the API process."""

    def __init__(self, engine: Engine, send: Callable[[FromEngine], None], files: KeptFiles) -> None:
        self._engine, self._send, self._files = engine, send, files
        self._numbers: dict[int, int] = {}  # engine's request id → API's number
        self._ids: dict[int, int] = {}  # API's number → engine's request id
        self._answers_left: dict[int, int] = {}  # by API's number
        self._prefix_asked = self._prefix_found = 0
        self._checked = self._told = time.monotonic()

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def command(self, frames: list[zmq.Frame]) -> bool:
        """Carries out one command. False: it was the order to stop."""
        message = decode_command(frames[0].buffer)
        if isinstance(message, Add):
            self._add(message, [frame.buffer for frame in frames[1:]])
        elif isinstance(message, Abort):
            request_id = self._ids.get(message.number)
            if request_id is not None:
                self._engine.abort(request_id)
                self._forget(message.number)
        elif isinstance(message, Flush):
            self._engine.flush()
            self._files.clear()
            self._engine.runner.give_memory_back()
            self._send(Done(message.number))
        elif isinstance(message, Ping):
            self._send(self.stats())
            self._send(Done(message.number))
        return not isinstance(message, Stop)

    def _add(self, head: Add, buffers: list[memoryview]) -> None:
        clock = StageClock()
        clock.seconds.update(head.seconds)
        try:
            request_id = self._engine.add(
                request_of(head, buffers, self._files),
                head.sampling,
                end_tokens=frozenset(head.end_tokens),
                stop=head.stop,
                priority=head.priority,
                cache_salt=head.cache_salt,
                clock=clock,
            )
        except UserError as error:
            self._send(News((UpdateHead(head.number, 0, failure=failure_of(error)),)))
            return
        self._ids[head.number] = request_id
        self._numbers[request_id] = head.number
        self._answers_left[head.number] = head.sampling.n

    def step(self) -> None:
        updates = self._engine.step()
        if updates:
            self._send(News(tuple(self._heads(updates))))
        self._tell_stats()

    def _heads(self, updates: Iterable[Update]) -> Iterable[UpdateHead]:
        for update in updates:
            number = self._numbers.get(update.request_id)
            if number is None:
                continue
            yield UpdateHead(
                number,
                update.index,
                update.text,
                update.token_ids,
                update.logprobs,
                self._finish(update.completion) if update.completion is not None else None,
                failure_of(update.error) if update.error is not None else None,
            )
            self._answers_left[number] -= update.last
            if not self._answers_left[number]:
                self._forget(number)

    def _finish(self, completion: Completion) -> Finish:
        self._prefix_asked += completion.prompt_tokens
        self._prefix_found += completion.cached_tokens
        return Finish(
            reason=completion.finish_reason,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=len(completion.token_ids),
            cached_tokens=completion.cached_tokens,
            media_items=completion.media_items,
            encoded_items=completion.encoded_items,
            timings=dict(completion.timings),
        )

    def _forget(self, number: int) -> None:
        del self._numbers[self._ids.pop(number)]
        del self._answers_left[number]

    def idle(self) -> None:
        """Called when there is nothing to do: a moment to see whether the books are right."""
        self._tell_stats()
        now = time.monotonic()
        if now - self._checked >= CHECK_EVERY_S:
            self._checked = now
            self._engine.check_integrity()

    def _tell_stats(self) -> None:
        now = time.monotonic()
        if now - self._told >= STATS_EVERY_S:
            self._told = now
            self._send(self.stats())

    def stats(self) -> Stats:
        schedule, counts = self._engine.schedule, self._engine.runner.counts
        pages, rows = schedule.pages, schedule.embeddings
        block_bytes = rows.block_rows * rows.row_bytes
        return Stats(
            running=len(schedule.running),
            waiting=len(schedule.waiting),
            pages=pages.usable_pages,
            pages_used=pages.usable_pages - pages.available_pages,
            pages_cached=pages.available_pages - pages.free_pages,
            prefix_pages=pages.tree_pages,
            prefix_evictions=pages.evictions,
            prefix_tokens_asked=self._prefix_asked,
            prefix_tokens_found=self._prefix_found,
            embedding_hits=rows.hits,
            embedding_misses=rows.misses,
            embedding_evictions=rows.evictions,
            embedding_bytes=rows.device_bytes,
            embedding_bytes_used=rows.used_blocks * block_bytes,
            host_hits=rows.host_hits,
            host_bytes_used=rows.host_bytes_used,
            items_decoded=counts.decoded,
            items_encoded=counts.encoded,
            videos_decoded=counts.videos_decoded,
            videos_encoded=counts.videos_encoded,
            items_restored=counts.restored,
            patches_encoded=counts.patches,
            preemptions=schedule.preemptions,
            steps=counts.steps,
            tokens=counts.tokens,
            graphs=self._engine.runner.recorded_graphs,
            step_seconds=self._engine.busy.seconds.get("steps", 0.0),
            tower_seconds=self._engine.busy.seconds.get("tower", 0.0),
            gpu_bytes=self._engine.runner.gpu_bytes,
        )


def failure_of(error: Exception) -> Failure:
    if isinstance(error, MissingMediaError):
        return Failure("missing_media", str(error))
    if isinstance(error, UserError):
        return Failure("invalid", str(error))
    if isinstance(error, OutOfMemoryError):
        return Failure("internal", str(error))
    return Failure("internal", f"The engine failed on this request with {type(error).__name__}: {error}")


def ready_report(engine: Engine, load_stages: dict[str, float]) -> Ready:
    weight, plan = engine.model.text.embed_tokens.weight, engine.memory
    held = [*engine.model.parameters(), *engine.model.buffers()]
    peaks = plan.peaks or NO_PEAKS
    return Ready(
        device=str(weight.device),
        dtype=str(weight.dtype).removeprefix("torch."),
        max_model_len=engine.max_model_len,
        memory=Memory(
            weights=sum(tensor.numel() * tensor.element_size() for tensor in held),
            kv_cache=plan.kv_bytes,
            kv_tokens=(plan.pages - 1) * engine.config.page_size,
            embeddings=plan.arena_bytes,
            embedding_rows=engine.schedule.embeddings.capacity_rows,
            host_embeddings=plan.host_bytes,
            language=peaks.language + peaks.sampling,
            vision=peaks.tower + peaks.pixels,
            graphs=peaks.graphs,
            margin=plan.margin,
            others=plan.others,
            total=plan.total,
        ),
        load_stages=load_stages,
        quantization=str(summarise(engine.model)),
        jpeg_decoder=engine.runner.gpu_decoder.name if engine.runner.gpu_decoder is not None else "",
    )


def load(start: Start, send: Callable[[FromEngine], None]) -> Engine:
    told, clock = 0.0, StageClock()
    clock.add("imports", _process_age())

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done == total or time.perf_counter() - told > 0.05:
            told = time.perf_counter()
            send(Progress(done, total))

    with clock.stage("files"):
        files = read_model_files(start.config.model, start.config.media)
    engine = load_engine(start.config, files, progress, clock)
    keep_from_the_collector()
    send(ready_report(engine, clock.seconds))
    return engine


def _process_age() -> float:
    """Seconds since this process was started, to a hundredth; 0 where the system does not tell."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def serve(socket: "zmq.SyncSocket", parent: int) -> int:
    """The life of an engine process; its exit code."""

    def send(report: FromEngine) -> None:
        socket.send(encode(report))

    first = decode_command(socket.recv())
    assert isinstance(first, Start)
    try:
        engine = load(first, send)
    except UserError as error:
        send(Refused(str(error)))
        return 1
    server = EngineServer(engine, send, KeptFiles(first.config.server.kept_media_bytes))
    try:
        while os.getppid() == parent:
            if not server.has_work and not socket.poll(_POLL_MS):
                server.idle()
                continue
            while socket.poll(0):  # all commands before the next step
                if not server.command(socket.recv_multipart(copy=False)):
                    return 0
            if server.has_work:
                server.step()
        _clean_up(str(socket.getsockopt_string(zmq.LAST_ENDPOINT)))
        return 1
    finally:
        engine.close()


def _clean_up(address: str) -> None:
    """The process that made the socket's folder is gone without having removed it."""
    shutil.rmtree(Path(address.removeprefix("ipc://")).parent, ignore_errors=True)


def main() -> int:
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what Pillow says of strangers' files would fill the log
    keep_freed_memory()
    parent = os.getppid()
    # A Ctrl-C or a SIGTERM to the whole group is for the API process, which first lets requests finish and then says Stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.connect(sys.argv[1])
    try:
        return serve(socket, parent)
    finally:
        with contextlib.suppress(zmq.ZMQError):
            socket.close()
            context.term()


if __name__ == "__main__":
    sys.exit(main())
