"""What answers requests, whoever brings them, HTTP or a file of `sightline batch`: engines, threads, what routes share."""

import asyncio
import base64
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

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
from sightline.server.observer import Observer, RequestRecord

_PIXEL = base64.b64decode(  # a PNG
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
Listeners = tuple[Callable[[LoadProgress], None], Callable[[Ready], None], Callable[[str], None]]


class Runtime:
    def __init__(
        self,
        config: Config,
        admission: AdmissionBudget,
        observer: Observer,
        listeners: Listeners,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        log_request: Callable[[RequestRecord, Mapping[str, object]], None] | None = None,
    ) -> None:
        """`listeners`: told of the progress of loading, of the loaded model, and of the end of what cannot be kept running."""
        self._config, self._admission, self._observer, self._log_request = config, admission, observer, log_request
        self._folder = find_folder(config.model)
        self._pool = ThreadPoolExecutor(config.server.worker_threads, thread_name_prefix="intake")
        self._digester = Digester()
        self._forms = ThreadPoolExecutor(2, thread_name_prefix="forms")
        self.draining = asyncio.Event()
        engines = EngineGroup if config.server.data_parallel_size > 1 else EngineClient
        self.engine: EngineClient | EngineGroup = engines(config, observer, *listeners, engine_command)

    async def start(self) -> ServerContext:
        """The engine loads while this process reads tokenizer and templates, which takes half a second."""
        self.engine.start()
        await self.engine.begun.wait()
        config, server = self._config, self._config.server
        return ServerContext(
            config=config,
            files=read_files_of(self._folder, config.model, config.media),
            engine=self.engine,
            observer=self._observer,
            pool=self._pool,
            digester=self._digester,
            forms=self._forms,
            keys=KeyRing(server.api_key, server.admin_api_key),
            admission=self._admission,
            names=MediaNames(server.max_known_uuids),
            model_names=served_names(config),
            started=int(time.time()),
            draining=self.draining,
            log_request=self._log_request,
        )

    def warm_up(self) -> None:
        """In a thread, while the engine loads."""
        asyncio.get_running_loop().run_in_executor(self._pool, _warm_up, self._config)

    async def close(self) -> None:
        await self.engine.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._digester.close()
        self._forms.shutdown(wait=False, cancel_futures=True)


def _warm_up(config: Config) -> None:
    """Imports what the first image needs, and takes what stays from the collector's rounds."""
    from sightline.media.source import load_image  # as the application, not before the engine is started

    load_image(_PIXEL, dataclasses.replace(config.media, min_image_side=1))
    keep_from_the_collector()
