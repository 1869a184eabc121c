"""A replica: the application and the engine of `sightline serve` in an actor of Ray Serve, which listens in their place."""

import asyncio
import logging
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.config import Config
from sightline.host_memory import keep_freed_memory
from sightline.media.pillow import silence_warnings
from sightline.ray.adapter import asgi_deployment, replica_name, use_http_protocol
from sightline.server.admission import AdmissionBudget
from sightline.server.context import served_names
from sightline.server.engine_client import EngineState
from sightline.server.errors import ApiError
from sightline.server.http_protocol import http_protocol
from sightline.server.metrics import Metrics
from sightline.server.request_log import RequestLog
from sightline.server.runtime import Runtime

log = logging.getLogger("sightline.ray")
_STATS_S = 2.0  # for a report of the engine as of now


@asgi_deployment
class Replica:
    def __init__(self, config: Config, engine_command: Sequence[str]) -> None:
        silence_warnings()
        keep_freed_memory()
        server = config.server
        use_http_protocol(http_protocol(server.header_timeout_s, server.read_timeout_s))
        self._failure: str | None = None
        self._settled = asyncio.Event()  # the engine answers, or will not
        admission = AdmissionBudget(server.max_inflight_mb, server.max_inflight_requests)
        self._metrics = Metrics(admission, served_names(config)[0])
        self._request_log = RequestLog() if server.log_requests else None
        listeners = (lambda report: None, lambda report: self._settled.set(), self._failed)
        self._runtime = Runtime(config, admission, self._metrics, listeners, engine_command, self._request_log)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Returns when the engine answers: until then no request is sent here."""
        context = await self._runtime.start()
        from sightline.server.app import make_app  # takes a third of a second, in which the engine has begun to load

        app = _named(make_app(context, self._metrics, on_loopback=False), replica_name())
        self._runtime.warm_up()
        await self._settled.wait()
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return app

    async def check_health(self) -> None:
        """Ray replaces a replica whose engine cannot be kept running; one that is being started again may take its time."""
        if self._failure is not None or self._runtime.engine.state is EngineState.FAILED:
            raise RuntimeError(self._failure or "The engine cannot be kept running.")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the policy (autoscaling.py) decides by."""
        try:
            async with asyncio.timeout(_STATS_S):
                stats = await self._runtime.engine.fresh_stats()
        except (ApiError, TimeoutError):  # it is being started again: its requests fail, and there is nothing to count
            return {"waiting": 0.0, "running": 0.0, "kv_usage": 0.0}
        return {"waiting": float(stats.waiting), "running": float(stats.running), "kv_usage": stats.pages_used / stats.pages}

    async def __del__(self) -> None:
        """Ray has waited for the requests in progress."""
        self._runtime.draining.set()
        await self._runtime.close()
        if self._request_log is not None:
            self._request_log.close()

    def _failed(self, sentence: str) -> None:
        log.error("%s", sentence)
        self._failure = sentence
        self._settled.set()


def _named(app: ASGIApp, name: str) -> ASGIApp:
    """Says in each answer whose it is: behind one address, that is what logs and metrics of a replica are found by."""
    header = (b"x-replica-id", name.encode())

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await app(scope, receive, send_named if scope["type"] == "http" else send)

    return front
