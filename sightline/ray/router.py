"""Which replica a request goes to: its image's owner, by the rule of --data-parallel-size (server/routing.py).

HAProxy sends the beginning of each POST to `IngressRouter`, one on each node with a proxy, and the request where that says.
`AffinityRouter` holds the rule; Ray gives it the replicas as they come and go.
"""

import asyncio
import json
import math
import time
from typing import Any

from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from sightline.config import EngineConfig
from sightline.ray.adapter import (
    ROUTE,
    FIFOMixin,
    PendingRequest,
    RequestRouter,
    RunningReplica,
    asgi_deployment,
    choose_replica,
    name_of,
    open_handle,
)
from sightline.ray.affinity import key_of_body
from sightline.server.routing import Choice, choose

_FRESH_S = 0.02  # a look at the replicas that is this old decides whether an owner is passed over
_OLD_S = 1.0  # one that is this old is taken again
_LOOK_TIMEOUT_S = 1.0


class AffinityRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Puts the owner of a key first, and behind it those that it would spill to.

    Requests end at replicas without passing here. So a replica counts as busy with what it had when it was last looked at and
    all that was sent to it since, which is too much; before an owner is passed over for it, all are looked at.
    """

    def initialize_state(self, sequences: int = EngineConfig.max_num_seqs, **_: Any) -> None:
        """`sequences` run at once in each replica."""
        self._sequences = sequences
        self._known: dict[bytes, int] = {}  # unfinished requests at the last look
        self._sent: dict[bytes, int] = {}  # requests since then
        self._looked = -math.inf
        self._look: asyncio.Task[None] | None = None

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if not candidate_replicas:
            return []
        names = [name_of(replica) for replica in candidate_replicas]
        key = pending_request.args[0] if pending_request is not None and pending_request.args else b""
        found = self._choose(key, names)
        age = time.monotonic() - self._looked
        if found.spilled and age > _FRESH_S:
            await asyncio.shield(self._looking())
            found = self._choose(key, names)
        elif age > _OLD_S:
            self._looking()
        name = names[found.engine]
        self._sent[name] = self._sent.get(name, 0) + 1
        first = candidate_replicas[found.engine]
        return [[first], [replica for replica in candidate_replicas if replica is not first]]

    def _choose(self, key: bytes, names: list[bytes]) -> Choice:
        return choose(key, [self._known.get(name, 0) + self._sent.get(name, 0) for name in names], self._sequences, names)

    def _looking(self) -> "asyncio.Task[None]":
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_task(self._look_at_all())
        return self._look

    async def _look_at_all(self) -> None:
        before, replicas = self._sent, list(self.curr_replicas.values())
        self._sent = {}
        counts = await asyncio.gather(*map(_unfinished, replicas))
        names = list(map(name_of, replicas))
        # Of one that said nothing nothing is new.
        self._known = {
            name: self._known.get(name, 0) + before.get(name, 0) if count is None else count
            for name, count in zip(names, counts, strict=True)
        }
        self._looked = time.monotonic()


async def _unfinished(replica: RunningReplica) -> int | None:
    """None: it did not say, for instance because it has died."""
    try:
        async with asyncio.timeout(_LOOK_TIMEOUT_S):
            return int(await replica.get_queue_len(deadline_s=_LOOK_TIMEOUT_S))
    except Exception:
        return None


@asgi_deployment
class IngressRouter:
    def __init__(self, replicas: DeploymentHandle[Any]) -> None:
        self._replicas = replicas

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        open_handle(self._replicas)

        async def application(scope: Scope, receive: Receive, send: Send) -> None:  # a function: servers look at what it is
            await self._answer(scope, receive, send)

        return application

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without a framework: this is in the way of every request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            status, found = 404, {"detail": f"There is only POST {ROUTE}."}
            if scope["path"] == ROUTE and scope["method"] == "POST":
                try:
                    status, found = 200, {"replica_id": await choose_replica(self._replicas, key_of_body(await _body(receive)))}
                except Exception as error:  # said by HAProxy as a 503: there is no replica, or Ray cannot say
                    status, found = 503, {"detail": f"{type(error).__name__}: {error}"}
            body = json.dumps(found).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
