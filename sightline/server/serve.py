"""Runs a server: the application on uvicorn, the engine beside it, signals, and an orderly end."""

import asyncio
import contextlib
import ipaddress
import logging
import math
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence

import uvicorn
import uvloop

from sightline.config import Config
from sightline.errors import ConfigError
from sightline.host_memory import keep_freed_memory
from sightline.media.pillow import silence_warnings
from sightline.server.admission import AdmissionBudget
from sightline.server.context import ServerContext, served_names
from sightline.server.engine_client import ENGINE_COMMAND
from sightline.server.http_protocol import http_protocol
from sightline.server.metrics import Metrics
from sightline.server.request_log import RequestLog
from sightline.server.runtime import Runtime
from sightline.server.startup_log import StartupLog

_DRAIN_LOOK_S = 0.05


def serve(config: Config, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Serves until a signal, or until the engine cannot be kept running. Returns the exit code."""
    level = config.server.log_level_number
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings are about strangers' requests
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    silence_warnings()
    _allow_open_files()
    keep_freed_memory()
    return uvloop.run(_Server(config, engine_command).run())


class _Server:
    def __init__(self, config: Config, engine_command: Sequence[str]) -> None:
        self._config, self._log = config, StartupLog(config.server.log_level_number)
        server = config.server
        self._admission = AdmissionBudget(server.max_inflight_mb, server.max_inflight_requests)
        self._metrics = Metrics(self._admission, served_names(config)[0])
        self._failure: str | None = None
        self._request_log = RequestLog() if server.log_requests else None
        self._socket = _listen(server.host, server.port)
        listeners = (self._log.progress, self._log.ready, self._failed)
        self._runtime = Runtime(config, self._admission, self._metrics, listeners, engine_command, self._request_log)
        self._uvicorn: _Uvicorn | None = None
        self._drain: asyncio.Task[None] | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            self._uvicorn = self._make_uvicorn(await self._runtime.start())
            self._say_where()
            self._runtime.warm_up()
            if self._failure is None and not self._runtime.draining.is_set():
                await self._uvicorn.serve([self._socket])
        finally:
            await self._runtime.close()
            if self._request_log is not None:
                self._request_log.close()
        if self._failure is not None:
            print(f"sightline: {self._failure}", file=sys.stderr)
            return 1
        return 0

    def _make_uvicorn(self, context: ServerContext) -> "_Uvicorn":
        from sightline.server.app import make_app  # takes a third of a second, in which the engine has begun to load

        server = self._config.server
        return _Uvicorn(
            uvicorn.Config(
                make_app(context, self._metrics, self._is_on_loopback),
                loop="none",
                http=http_protocol(server.header_timeout_s, server.read_timeout_s),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=server.keep_alive_timeout_s,  # type: ignore[arg-type] # it goes to call_later
                timeout_graceful_shutdown=math.ceil(server.drain_timeout_s),
            )
        )

    @property
    def _is_on_loopback(self) -> bool:
        return ipaddress.ip_address(self._socket.getsockname()[0]).is_loopback

    def _say_where(self) -> None:
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self._log.say(f"Serving {', '.join(served_names(self._config))} on http://{shown}:{port} once it is loaded.")
        if not self._config.server.api_key and not self._is_on_loopback:
            self._log.say(f"Whoever can reach {host} may ask: the server has no api_key.", logging.WARNING)

    def _failed(self, sentence: str) -> None:
        self._log.end_progress()
        self._failure = sentence
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    def _stop(self) -> None:
        """The first signal: no more requests, and those in progress may end within drain_timeout_s. A second one ends them."""
        again = self._runtime.draining.is_set()
        self._runtime.draining.set()
        if self._uvicorn is None:  # nobody could ask yet
            return
        if again:
            self._uvicorn.force_exit = True
            self._uvicorn.should_exit = True
            return
        if self._admission.requests:
            limit = self._config.server.drain_timeout_s
            self._log.say(f"Stopping: {self._admission.requests} requests in progress may end within {limit:g} s.")
        self._drain = asyncio.get_running_loop().create_task(self._end_when_drained(self._uvicorn))

    async def _end_when_drained(self, server: "_Uvicorn") -> None:
        """The listener stays open meanwhile, so that whoever comes is told to come back (app.py) rather than turned away."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._config.server.drain_timeout_s
        while self._admission.requests and loop.time() < end and not server.should_exit:
            await asyncio.sleep(_DRAIN_LOOK_S)
        server.config.timeout_graceful_shutdown = max(1, math.ceil(end - loop.time()))  # for what is still being sent
        server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Requests that the end of a drain cuts short are no mistakes: no traceback for each."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, asyncio.CancelledError)


def _allow_open_files() -> None:
    """As many as we may have: with the usual 1024, as many idle connections would keep everybody else out."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems name a limit that they do not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is known before a model is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None
    listener.setblocking(False)
    listener.listen(1024)
    return listener
