"""What a server is made of but for its listener: the engine, the budgets, the threads, and the application over them.

`sightline serve` puts it behind uvicorn (serve.py), a replica of Ray Serve behind Ray's own (sightline/ray/replica.py).
"""

import asyncio
import base64
import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from starlette.types import ASGIApp

from sightline.config import Config
from sightline.engine.messages import LoadProgress, Ready
from sightline.host_memory import keep_from_the_collector
from sightline.media.digests import Digester
from sightline.models.files import find_folder, read_files_of
from sightline.server.admission import AdmissionBudget
from sightline.server.auth import KeyRing
from sightline.server.context import ServerContext, served_names
from sightline.server.engine_client import ENGINE_COMMAND, EngineClient
from sightline.server.engine_group import EngineGroup
from sightline.server.media_names import MediaNames
from sightline.server.metrics import Metrics
from sightline.server.request_log import RequestLog

_PIXEL = base64.b64decode(  # a PNG
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)


class ServerParts:
    """To be made in the event loop that the application runs in, and closed there."""

    def __init__(
        self,
        config: Config,
        on_progress: Callable[[LoadProgress], None],
        on_ready: Callable[[Ready], None],
        on_failed: Callable[[str], None],
        engine_command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self.config = config
        server = config.server
        self._folder = find_folder(config.model)
        self.admission = AdmissionBudget(server.max_inflight_mb, server.max_inflight_requests)
        self.metrics = Metrics(self.admission, served_names(config)[0])
        self.draining = asyncio.Event()
        self._request_log = RequestLog() if server.log_requests else None
        self._pool = ThreadPoolExecutor(server.worker_threads, thread_name_prefix="intake")
        self._digester = Digester()
        self._forms = ThreadPoolExecutor(2, thread_name_prefix="forms")
        engines = EngineGroup if server.data_parallel_size > 1 else EngineClient
        self.engine: EngineClient | EngineGroup = engines(
            config, self.metrics, on_progress, on_ready, on_failed, engine_command
        )

    def make_app(self, on_loopback: bool) -> ASGIApp:
        """To be called when the engine has begun: it loads while this process reads tokenizer and templates, half a second."""
        files = read_files_of(self._folder, self.config.model, self.config.media)
        from sightline.server.app import make_app  # takes a third of a second, in which the engine has begun to load

        server = self.config.server
        context = ServerContext(
            config=self.config,
            files=files,
            engine=self.engine,
            observer=self.metrics,
            pool=self._pool,
            digester=self._digester,
            forms=self._forms,
            keys=KeyRing(server.api_key, server.admin_api_key),
            admission=self.admission,
            names=MediaNames(server.max_known_uuids),
            model_names=served_names(self.config),
            started=int(time.time()),
            draining=self.draining,
            log_request=self._request_log,
        )
        return make_app(context, self.metrics, on_loopback)

    def warm_up(self) -> None:
        """Beside the engine, which still loads."""
        asyncio.get_running_loop().run_in_executor(self._pool, _warm_up, self.config)

    async def close(self) -> None:
        await self.engine.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._digester.close()
        self._forms.shutdown(wait=False, cancel_futures=True)
        if self._request_log is not None:
            self._request_log.close()


def _warm_up(config: Config) -> None:
    """Imports what the first image needs, and takes what stays from the collector's rounds."""
    from sightline.media.source import load_image  # as the application, not before the engine is started

    load_image(_PIXEL, dataclasses.replace(config.media, min_image_side=1))
    keep_from_the_collector()
