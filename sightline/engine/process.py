"""An engine in a process of its own, for `sightline serve`; engine/main.py starts it.

The loop is that of engine/thread.py: all commands that have come, then a step, whose news go out as one message. The process
ends when it is told to, when the process that started it is gone (engine/link.py), or when the engine breaks, which is a crash
that the API process sees by the exit code.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import zmq

from sightline.engine.encoder_server import EncoderServer, load_encoder_server
from sightline.engine.engine import Engine, Update
from sightline.engine.file_cache import FileCache
from sightline.engine.link import Link
from sightline.engine.liveness import Liveness, LoadClock
from sightline.engine.load import load_engine
from sightline.engine.messages import (
    Abort,
    Add,
    Done,
    EngineBroken,
    EngineRefused,
    Finish,
    Flush,
    FromEngine,
    LoadProgress,
    MemoryReport,
    News,
    Ping,
    Ready,
    Start,
    Stats,
    Stop,
    UpdateHead,
    decode_command,
    encode,
    submission_of,
)
from sightline.engine.process_executor import WorkerDied
from sightline.engine.process_failures import failure_of
from sightline.errors import UserError
from sightline.host_memory import keep_from_the_collector
from sightline.models.files import read_model_files
from sightline.parallel.launch import Launch
from sightline.schedule.pace import Pace
from sightline.types import Completion
from sightline.worker.activation_peak import NO_PEAKS

CHECK_EVERY_S = 60.0  # an idle engine checks its integrity this often
STATS_EVERY_S = 0.5
_POLL_MS = 500


class EngineServer:
    """Carries out commands between steps. `send` takes a report to the API process."""

    def __init__(self, engine: Engine, send: Callable[[FromEngine], None], files: FileCache) -> None:
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
        message = decode_command(*(frame.buffer for frame in frames))
        if isinstance(message, Add):
            self._add(message)
        elif isinstance(message, Abort):
            request_id = self._ids.get(message.number)
            if request_id is not None:
                self._engine.abort(request_id)
                self._forget(message.number)
        elif isinstance(message, Flush):
            self._engine.flush()
            self._files.clear()
            self._engine.executor.give_memory_back()
            self._send(Done(message.number))
        elif isinstance(message, Ping):
            self._send(self.stats())
            self._send(Done(message.number))
        return not isinstance(message, Stop)

    def _add(self, message: Add) -> None:
        try:
            request_id = self._engine.add(submission_of(message, self._files))
        except UserError as error:
            self._send(News((UpdateHead(message.number, 0, failure=failure_of(error)),)))
            return
        self._ids[message.number] = request_id
        self._numbers[request_id] = message.number
        self._answers_left[message.number] = message.submission.sampling.n

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
        return Finish.of(completion)

    def _forget(self, number: int) -> None:
        del self._numbers[self._ids.pop(number)]
        del self._answers_left[number]

    def close(self) -> None:
        self._engine.close()

    def idle(self) -> None:
        """Called when there is nothing to do: a moment to check the integrity of its state."""
        self._engine.executor.check_alive()
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
        schedule, counts = self._engine.schedule, self._engine.counts
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
            state_evictions=pages.state_evictions,
            states_taken=schedule.states.taken if schedule.states is not None else 0,
            itl_target_exceeded=schedule.pace.exceeded if schedule.pace is not None else 0,
            state_tokens_lost=schedule.states.tokens_lost if schedule.states is not None else 0,
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
            frames_shared=counts.frames_shared,
            items_restored=counts.restored,
            patches_encoded=counts.patches,
            preemptions=schedule.preemptions,
            steps=counts.steps,
            tokens=counts.tokens,
            graphs=self._engine.executor.captured_graphs,
            step_seconds=self._engine.busy.seconds.get("steps", 0.0),
            tower_seconds=self._engine.busy.seconds.get("tower", 0.0),
            gpu_bytes=self._engine.executor.gpu_bytes,
            encoder_up=int(self._engine.encoder.remote_is_up),
            encoder_encoded=self._engine.encoder.remote_counts.encoded,
            encoder_away=self._engine.encoder.remote_counts.away,
            encoder_refused=self._engine.encoder.remote_counts.refused,
            encoder_bytes=self._engine.encoder.remote_counts.bytes,
        )


def ready_report(engine: Engine, load_stages: dict[str, float]) -> Ready:
    facts = engine.executor.facts
    plan, peaks = facts.memory, facts.memory.peaks or NO_PEAKS
    return Ready(
        device=facts.device,
        dtype=facts.dtype,
        max_model_len=engine.max_model_len,
        memory=MemoryReport(
            weights=facts.weights_bytes,
            kv_cache=plan.kv_bytes,
            kv_tokens=(plan.pages - 1) * engine.config.page_size,
            embeddings=plan.arena_bytes,
            embedding_rows=engine.schedule.embeddings.capacity_rows,
            host_embeddings=plan.host_bytes,
            states=plan.states_bytes,
            state_snapshots=max(0, plan.state_slots - engine.config.max_num_seqs - 1),
            language=peaks.language + peaks.sampling + peaks.workspaces,
            vision=peaks.tower + peaks.pixels,
            graphs=peaks.graphs,
            margin=plan.margin,
            others=plan.others,
            total=plan.total,
        ),
        load_stages=load_stages,
        quantization=facts.quantization,
        gpu_decoder=facts.gpu_decoder,
        gpu_kinds=facts.gpu_kinds,
        tilings=facts.tilings.digest if facts.tilings is not None else "",
        page_size=engine.config.page_size,
    )


def load(start: Start, socket: "zmq.SyncSocket", liveness: Liveness) -> EngineServer | EncoderServer:
    def send(report: FromEngine) -> None:
        socket.send(encode(report))

    told, clock = 0.0, LoadClock(liveness)
    clock.add("imports", _process_age())

    def progress(done: int, total: int) -> None:
        nonlocal told
        liveness.touch()
        if done == total or time.perf_counter() - told > 0.05:
            told = time.perf_counter()
            send(LoadProgress(done, total))

    with clock.stage("files"):
        files = read_model_files(start.config.model, start.config.media)
    if start.config.server.encoder_only:
        encoder = load_encoder_server(start.config, files, socket.send_multipart, progress, clock)
        keep_from_the_collector()
        send(encoder.ready_report(files.max_model_len, clock.seconds))
        return encoder
    engine = load_engine(start.config, files, progress, clock, Launch.read(os.environ))
    if start.config.engine.target_itl_ms is None:  # after the warm-up, whose steps say nothing
        engine.schedule.pace = Pace()
    keep_from_the_collector()
    send(ready_report(engine, clock.seconds))
    return EngineServer(engine, send, FileCache(start.config.server.kept_media_bytes))


def _process_age() -> float:
    """Seconds since this process was started, to a hundredth; 0 where the system does not tell."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _log_from(level: int) -> None:
    """Our own messages from this level on; what libraries say below a warning stays unsaid unless it is asked for."""
    others = level if level <= logging.DEBUG else max(level, logging.WARNING)
    logging.basicConfig(level=others, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("sightline").setLevel(level)


def serve(link: Link) -> int:
    """The life of an engine process; its exit code."""
    socket, liveness = link.commands, link.liveness
    start = link.receive_start()
    _log_from(start.config.server.log_level_number)
    try:
        server = load(start, socket, liveness)
    except UserError as error:
        socket.send(encode(EngineRefused(str(error))))
        return 1
    except WorkerDied as error:
        socket.send(encode(EngineBroken(str(error))))
        return 1
    try:
        while True:
            liveness.idle()
            if not server.has_work and not socket.poll(_POLL_MS):
                liveness.begin("integrity check")
                server.idle()
                continue
            while socket.poll(0):  # all commands before the next step
                liveness.begin("command")
                if not server.command(socket.recv_multipart(copy=False)):
                    return 0
            if server.has_work:
                liveness.begin("step")
                server.step()
    except WorkerDied as error:
        socket.send(encode(EngineBroken(str(error))))
        return 1
    finally:
        server.close()
