"""The server under test: which model it serves, and one question to it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from sightline.bench.load.http import HttpClient, TransportError
from sightline.bench.load.request_result import (
    RequestFailure,
    RequestResult,
    StreamReader,
    message_of,
    read_refusal,
    read_whole,
    shown,
)
from sightline.errors import ConfigError, UserError


class TargetError(UserError):
    """The server cannot be measured."""


@dataclass(frozen=True)
class TargetConfig:
    base_url: str = "http://127.0.0.1:8000"
    endpoint: str = "/v1/chat/completions"
    model: str | None = None  # by default the first that the server names
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.endpoint.startswith("/"):
            raise ConfigError(f"The endpoint {self.endpoint!r} must be a path that begins with /.")
        if self.timeout_s <= 0:
            raise ConfigError(f"The timeout is {self.timeout_s:g} s, but must be more than 0.")


class Target:
    """To be made and used inside one event loop."""

    def __init__(self, config: TargetConfig) -> None:
        headers = dict(config.headers)
        if config.api_key:
            headers["authorization"] = f"Bearer {config.api_key}"
        self.config = config
        self.client = HttpClient(config.base_url, headers)
        self.model = config.model or ""
        self.is_sightline = False

    async def look_up(self) -> None:
        """Asks the server what it serves. A server without /v1/models will do if the model is named."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                reply = await self.client.request("GET", "/v1/models")
        except (TransportError, TimeoutError) as error:
            raise TargetError(f"The server at {self.config.base_url} cannot be reached: {str(error) or 'no answer'}") from None
        try:
            models = msgspec.json.decode(bytes(reply.body))["data"] if reply.status == 200 else []
            names = [str(model["id"]) for model in models]
            self.is_sightline = any(model.get("owned_by") == "sightline" for model in models)
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
            names = []
        if self.model:
            return
        if reply.status != 200:
            said = _said(bytes(reply.body))
            raise TargetError(f"The server answers /v1/models with {reply.status} ({said}); name the model with --model.")
        if not names:
            raise TargetError("The server names no model at /v1/models; name it with --model.")
        self.model = names[0]

    async def ask(
        self,
        body: Sequence[bytes],
        stream: bool,
        due: float | None = None,
        begun: Callable[[RequestResult], None] = lambda answer: None,
    ) -> RequestResult:
        """Sends one request and reads its answer. What goes wrong is a failure in the answer, never an exception."""
        answer = RequestResult(time.perf_counter())
        answer.queued = max(0.0, answer.start - due) if due is not None else 0.0
        reader = StreamReader(answer, begun) if stream else None
        try:
            async with asyncio.timeout(self.config.timeout_s):
                reply = await self.client.request("POST", self.config.endpoint, body, reader.feed if reader else None)
        except TimeoutError:
            answer.failure = RequestFailure("timeout", f"No whole answer within {self.config.timeout_s:g} s.")
            answer.end = time.perf_counter()
            return answer
        except TransportError as error:
            answer.failure = answer.failure or RequestFailure(error.kind, str(error))
            answer.end = time.perf_counter()
            return answer
        if reply.status != 200:
            read_refusal(answer, reply.status, reply.ended, bytes(reply.body))
        elif reader is not None:
            reader.finish(reply.ended)
        else:
            read_whole(answer, reply.ended, bytes(reply.body))
        return answer

    def close(self) -> None:
        self.client.close()


def _said(body: bytes) -> str:
    try:
        return message_of(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return shown(body) or "no text"
