"""Embeddings that another server makes: asked for beside the engine, which names what it will need and asks what is ready.

It is used as the decoder of pixels is (encoder/decoding/decoder.py), by one thread, and never waits:

```
want(items) ──► waiting ──room and a free connection──► asked ──► READY ──take──► the caller's
                   └───────────── the other is away ─────┴──────► FAILED (EncoderAwayError)
```

    connecting ──handshake──► up ──a connection breaks, 401, 409, 5xx──► away ──handshake, tried each second──► up

What `want` no longer names is cancelled: its connection is closed, which the other server sees. An answer that is not what it
should be costs its item alone.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sightline.config import EncoderConfig
from sightline.encoder.decoding.pixels import PixelState
from sightline.engine.remote.connection import Away, Busy, Connection, Received, Refused, Wrong
from sightline.engine.remote.wire import Identity, RowsHead, rows_bytes
from sightline.errors import ConfigError, EncoderAwayError, MediaError
from sightline.types import MediaItem

log = logging.getLogger("sightline.encoder")

RETRY_S = 1.0  # between attempts to reach one that is away
_WATCH_S = 0.2
_END_S = 2.0
_BUSY_S = 0.1  # before one that has too much to do is asked again


@dataclass(frozen=True)
class Rows:
    """Embeddings of an item."""

    head: RowsHead
    data: bytes
    seconds: float  # from asking to the whole answer


@dataclass(eq=False)
class _Job:
    item: MediaItem
    bytes: int  # of its rows
    state: PixelState = PixelState.PENDING
    running: bool = False
    deadline: float = 0.0
    connection: Connection | None = None
    rows: Rows | None = None
    error: MediaError | None = None
    cancelled: bool = False

    @property
    def waiting(self) -> bool:
        return self.state is PixelState.PENDING and not self.running

    def cancel(self) -> None:
        self.cancelled = True
        if self.connection is not None:
            self.connection.interrupt()


@dataclass
class RemoteCounts:
    """As Prometheus shows them."""

    encoded: int = 0  # items that the other has encoded
    away: int = 0  # that it did not, because it was away, or was asked and gave no usable answer
    refused: int = 0  # of which it said that they cannot be encoded
    bytes: int = 0  # of embeddings that came


@dataclass
class RemoteEncoder:
    config: EncoderConfig
    own: Identity  # of this server's tower: what the other must have, too
    memory_bytes: int  # for rows that are asked for or were not taken
    on_news: Callable[[], None]  # called in any thread
    counts: RemoteCounts = field(default_factory=RemoteCounts)
    other: Identity | None = None  # the last one met
    up: bool = False
    away_because: str = ""

    def __post_init__(self) -> None:
        assert self.config.encoder_url is not None
        self.url = self.config.encoder_url.rstrip("/")
        self._lock = threading.Condition()
        self._jobs: dict[bytes, _Job] = {}  # by key, most urgent first
        self._running: set[_Job] = set()
        self._failed: list[_Job] = []
        self._changed = False
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    # ---- Its life

    def start(self) -> None:
        """Meets the other server. A ConfigError if that is another model, or does not let us in; one that is away may come."""
        try:
            self._meet()
        except Refused as refusal:
            raise ConfigError(f"encoder_url is {self.url}, but {refusal}.") from None
        except Away as away:
            self._note_away(str(away))
        for number in range(self.config.encoder_connections):
            self._threads.append(threading.Thread(target=self._serve, name=f"encoder {number}", daemon=True))
        self._threads.append(threading.Thread(target=self._watch, name="encoder watch", daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            for job in self._running:
                job.cancel()
            self._lock.notify_all()
        for thread in self._threads:
            thread.join(_END_S)  # one may be at a connection that is not made yet; it ends by itself

    # ---- What the engine asks; nothing here waits

    def want(self, items: Iterable[MediaItem]) -> None:
        """All that will be needed, most urgent first. What is not among them any more is cancelled and forgotten."""
        with self._lock:
            before, self._jobs = self._jobs, {}
            for item in items:
                if item.key in self._jobs:
                    continue
                job = before.pop(item.key, None)
                if job is None:
                    job = _Job(item, rows_bytes(item, self.own))
                    if not self.up:
                        self._fail(job, self._away_error())
                self._jobs[item.key] = job
            for job in before.values():
                job.cancel()
            self._put_back_for_most_urgent()
            self._wake()

    def state(self, item: MediaItem) -> PixelState:
        job = self._jobs.get(item.key)
        return PixelState.PENDING if job is None else job.state

    def decoder_of(self, item: MediaItem) -> str | None:
        """Which decoder made the pixels of an item that is READY; None: it is not."""
        job = self._jobs.get(item.key)
        return job.rows.head.decoder if job is not None and job.rows is not None else None

    def take(self, item: MediaItem) -> Rows:
        """The rows of an item that is READY; they are the caller's. Of one that FAILED, raises its MediaError."""
        with self._lock:
            job = self._jobs.pop(item.key)
            self._wake()
        if job.error is not None:
            raise job.error
        assert job.rows is not None, f"{item.ref.source} is not encoded yet"
        return job.rows

    def failed(self) -> list[tuple[MediaItem, MediaError]]:
        """Wanted items that failed since this was last asked."""
        if not self._failed:
            return []
        with self._lock:
            news, self._failed = self._failed, []
            return [(job.item, job.error) for job in news if job.error is not None and self._jobs.get(job.item.key) is job]

    def note_change(self) -> None:
        with self._lock:
            self._changed = True

    def has_changed(self) -> bool:
        """Whether the other went or came since this was last asked."""
        if not self._changed:
            return False
        with self._lock:
            self._changed = False
        return True

    # ---- Memory

    def _used(self) -> int:
        asked = sum(job.bytes for job in self._running)
        return asked + sum(job.bytes for job in self._jobs.values() if job.state is PixelState.READY)

    def _fits(self, job: _Job) -> bool:
        """One that is larger than all of the memory goes alone."""
        used = self._used()
        return not used or used + job.bytes <= self.memory_bytes

    def _put_back_for_most_urgent(self) -> None:
        """Rows that are ready may be in the way of an item that is wanted before them; if nothing that is under way will make
        room, the least urgent are let go, to be asked for again later."""
        jobs = list(self._jobs.values())
        first = next((index for index, job in enumerate(jobs) if job.waiting), None)
        if first is None or self._running:
            return
        for job in reversed(jobs[first + 1 :]):
            if self._fits(jobs[first]):
                return
            if job.state is PixelState.READY:
                job.state, job.rows = PixelState.PENDING, None

    # ---- Threads that ask

    def _serve(self) -> None:
        connection = Connection(self.url, self.config.encoder_api_key, self.config.encoder_timeout_s)
        while True:
            with self._lock:
                job = self._next()
                while job is None and not self._closing.is_set():
                    self._lock.wait()
                    job = self._next()
                if job is None or self._closing.is_set():
                    connection.close()
                    return
                job.running, job.connection = True, connection
                job.deadline = time.monotonic() + self.config.encoder_timeout_s
                self._running.add(job)
                self._wake()
            try:
                self._ask(job, connection)
            except Exception as error:  # a mistake of ours: the item fails, and nobody waits for it for ever
                log.exception("Asking for %s failed.", job.item.ref.source)
                self._end(job, error=MediaError(f"{_name(job.item)} cannot be encoded: {type(error).__name__}."))

    def _next(self) -> _Job | None:
        """The most urgent one that is not asked for, if there is room for its rows; nobody overtakes it."""
        job = next((job for job in self._jobs.values() if job.waiting), None)
        return job if job is not None and self.up and self._fits(job) else None

    def _wake(self) -> None:
        """With the lock held: one thread for the next job, which wakes the next in turn."""
        if self._next() is not None:
            self._lock.notify()

    def _ask(self, job: _Job, connection: Connection) -> None:
        other, began = self.other, time.perf_counter()
        assert other is not None
        while True:
            try:
                answer = connection.encode(job.item, other, job.deadline)
                self._end(job, answer, seconds=time.perf_counter() - began)
            except Busy:
                if time.monotonic() + _BUSY_S < job.deadline and not job.cancelled:
                    time.sleep(_BUSY_S)
                    continue
                self._end(job, error=self._away_error("it has too much to do"))
            except Wrong as wrong:
                log.error("The encoder at %s answered wrongly for %s: %s.", self.url, job.item.ref.source, wrong)
                self._end(job, error=self._away_error("it answered wrongly"))
            except MediaError as error:
                self._end(job, error=error)
            except (Away, Refused) as away:
                if not job.cancelled:
                    self._note_away(str(away))
                self._end(job, error=self._away_error(str(away)))
            return

    def _end(self, job: _Job, answer: Received | None = None, seconds: float = 0.0, error: MediaError | None = None) -> None:
        with self._lock:
            job.running, job.connection = False, None
            self._running.discard(job)
            if self._jobs.get(job.item.key) is job and not job.cancelled:
                if answer is not None:
                    job.rows, job.state = Rows(answer.head, answer.rows, seconds), PixelState.READY
                    self.counts.encoded += 1
                    self.counts.bytes += len(answer.rows)
                else:
                    assert error is not None
                    self._fail(job, error)
            self._wake()
        self.on_news()

    def _fail(self, job: _Job, error: MediaError) -> None:
        """With the lock held."""
        job.error, job.state = error, PixelState.FAILED
        if isinstance(error, EncoderAwayError):
            self.counts.away += 1
        else:
            self.counts.refused += 1
        self._failed.append(job)

    def _away_error(self, why: str = "") -> EncoderAwayError:
        return EncoderAwayError(f"The server that encodes images and videos cannot be used now: {why or self.away_because}.")

    # ---- The other server, there or away

    def _meet(self) -> None:
        connection = Connection(self.url, self.config.encoder_api_key, self.config.encoder_timeout_s)
        try:
            other = connection.meet()
        finally:
            connection.close()
        difference = self.own.difference(other)
        if difference is not None:
            raise Refused(f"that server cannot encode for this one: {difference}")
        with self._lock:
            came_back = not self.up and bool(self.away_because)
            self.other, self.up, self.away_because, self._changed = other, True, "", True
            self._wake()
        log.info("The encoder at %s %s.", self.url, "is back" if came_back else "answers")

    def _note_away(self, why: str) -> None:
        with self._lock:
            news, self.up = why != self.away_because, False
            self.away_because = why
            for job in self._jobs.values():
                if job.waiting:
                    self._fail(job, self._away_error())
            self._changed = True
        if news:
            local = self.config.encoder_fallback == "local"
            what = "images are encoded here" if local else "requests with new images are refused"
            log.warning("The encoder at %s cannot be used: %s; until it can %s.", self.url, why, what)
        self.on_news()

    def _watch(self) -> None:
        """Ends requests that take too long, and looks for a server that is away."""
        tried = time.monotonic()
        while not self._closing.wait(_WATCH_S):
            with self._lock:
                now = time.monotonic()
                for job in self._running:
                    if now > job.deadline and job.connection is not None:
                        job.connection.interrupt()
                away = not self.up
            if away and now - tried >= RETRY_S:
                tried = now
                try:
                    self._meet()
                    self.on_news()
                except (Away, Refused) as error:
                    self._note_away(str(error))
                except Exception:  # a mistake of ours must not end the watch
                    log.exception("The encoder at %s could not be asked.", self.url)


def _name(item: MediaItem) -> str:
    return f"{item.ref.kind.capitalize()} {item.ref.source}"
