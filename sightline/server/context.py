"""What the routes of a running server share."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sightline.config import Config
from sightline.media.digests import Digester
from sightline.media.known_files import KnownFiles
from sightline.models.files import ModelFiles
from sightline.prompt.builder import PromptBuilder
from sightline.server.admission import AdmissionBudget
from sightline.server.auth import KeyRing
from sightline.server.call import Call
from sightline.server.engine_client import EngineClient
from sightline.server.engine_group import EngineGroup
from sightline.server.errors import ApiError, unavailable
from sightline.server.media_names import MediaNames
from sightline.server.observer import Observer, RequestRecord
from sightline.submission import tenant_of

EMBEDDED_NAME = "sightline-embedded"


@dataclass(frozen=True)
class ServerContext:
    config: Config
    files: ModelFiles
    engine: EngineClient | EngineGroup
    observer: Observer
    pool: ThreadPoolExecutor  # for what takes longer than about a millisecond
    digester: Digester
    known_files: KnownFiles
    forms: ThreadPoolExecutor  # for forms of answers, which may take seconds to judge: nobody else waits behind them
    keys: KeyRing
    admission: AdmissionBudget
    names: MediaNames
    model_names: tuple[str, ...]  # as /v1/models lists them
    started: int  # seconds since 1970
    draining: asyncio.Event  # set when the server takes no more requests
    log_request: Callable[[RequestRecord, Mapping[str, object]], None] | None

    @functools.cached_property
    def prompts(self) -> PromptBuilder:
        return self.files.prompt_builder(self.config.media)

    @property
    def weight_version(self) -> str:
        """SGLang's word for which weights answer: the revision that was asked for."""
        return self.config.model.revision or "default"

    def tenant(self, caller: str, cache_salt: str | None) -> str:
        """Who may share caches with this request."""
        return tenant_of("" if self.config.server.share_caches_between_keys else caller, cache_salt or "")

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
        """The name to answer with. A request may name the model as served or by the path it was loaded from, "auto" or not at
        all."""
        if not name:
            return self.model_names[0]
        if name == "auto" or name in self.model_names or self.config.server.accept_any_model_name:
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
    """A folder gives its name, not its path: where a model lies on our disk is nobody's business."""
    if config.server.served_model_name:
        return config.server.served_model_name
    model = config.model.model
    if not model:
        return (EMBEDDED_NAME,)
    return (Path(model).resolve().name or EMBEDDED_NAME,) if Path(model).is_dir() else (model,)
