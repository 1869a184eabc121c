"""What the routes of a running server share."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sightline.config import Config
from sightline.media.digests import Digester
from sightline.models.files import ModelFiles
from sightline.prompt.expand import MediaText
from sightline.server.auth import KeyRing
from sightline.server.call import Call
from sightline.server.engine_client import EngineClient
from sightline.server.errors import ApiError, unavailable
from sightline.server.inflight import Ledger
from sightline.server.media_names import MediaNames
from sightline.server.observer import Observer, RequestRecord

EMBEDDED_NAME = "sightline-embedded"


@dataclass(frozen=True)
class ServerContext:
    config: Config
    files: ModelFiles
    engine: EngineClient
    observer: Observer
    pool: ThreadPoolExecutor  # for what takes longer than about a millisecond
    digester: Digester
    forms: ThreadPoolExecutor  # for forms of answers, which may take seconds to judge: nobody else waits behind them
    keys: KeyRing
    ledger: Ledger
    names: MediaNames
    model_names: tuple[str, ...]  # as /v1/models lists them
    started: int  # seconds since 1970
    draining: asyncio.Event  # set when the server takes no more requests
    log_request: Callable[[RequestRecord, Mapping[str, object]], None] | None

    @property
    def placeholders(self) -> tuple[str, ...]:
        return MediaText.of(self.files.spec.tokens, self.files.tokenizer).placeholders

    def require_serving(self) -> None:
        if self.draining.is_set():
            raise unavailable("The server is shutting down.")
        self.engine.require_ready()

    def finished(self, call: Call, status: int, error: str | None) -> None:
        record = call.record(status, error)
        self.observer.request_finished(record)
        if self.log_request is not None:
            self.log_request(record, call.content)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. A request may name the model as served or by the path it was loaded from, or not at all."""
        if not name:
            return self.model_names[0]
        if name in self.model_names:
            return name
        if name.rstrip("/") in (str(self.files.folder).rstrip("/"), self.config.model.model.rstrip("/")):
            return name
        raise ApiError(
            404,
            f"Model {name!r} is not served here; there is {', '.join(self.model_names)}.",
            param="model",
            code="model_not_found",
        )


def served_names(config: Config) -> tuple[str, ...]:
    return config.server.served_model_name or (config.model.model.rstrip("/") or EMBEDDED_NAME,)
