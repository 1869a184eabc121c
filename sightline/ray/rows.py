"""What an actor of Ray Data does: a batch of rows to requests, asked of the server's endpoint within the process.

The engine and what is around it live in a thread of their own for as long as the actor does; Ray's threads hand batches over.
"""

import asyncio
import base64
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import uvloop
from starlette.types import ASGIApp

from sightline.batch.ask import RowAnswer, ask
from sightline.batch.run import TRIES
from sightline.config import Config
from sightline.errors import ConfigError, UserError
from sightline.host_memory import keep_freed_memory
from sightline.media.pillow import silence_warnings
from sightline.ray.checkpoint import Checkpoint, key_of
from sightline.server.admission import AdmissionBudget
from sightline.server.observer import Observer
from sightline.server.runtime import Runtime

URL = "/v1/chat/completions"
_LOOK_S = 0.05


@dataclass(frozen=True)
class RowPlan:
    prompt: str | Callable[[Mapping[str, Any]], str]
    image_column: str | None
    sampling: Mapping[str, Any]
    checkpoint: str | None
    answer_column: str
    error_column: str


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Body(msgspec.Struct):
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Body)


class RowAnswers:
    def __init__(self, config: Config, plan: RowPlan, engine_command: Sequence[str]) -> None:
        silence_warnings()
        keep_freed_memory()
        self._config, self._plan = config, plan
        self._checkpoint = Checkpoint(Path(plan.checkpoint)) if plan.checkpoint is not None else None
        self._loop = uvloop.new_event_loop()
        # The engine's process ends with the thread that starts it.
        threading.Thread(target=self._loop.run_forever, name="rows", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start(engine_command), self._loop).result()

    async def _start(self, engine_command: Sequence[str]) -> None:
        failed: asyncio.Future[None] = self._loop.create_future()

        def fail(sentence: str) -> None:
            if not failed.done():
                failed.set_exception(UserError(sentence))

        server = self._config.server
        admission = AdmissionBudget(server.max_inflight_mb, server.max_inflight_requests)
        listeners = (lambda report: None, lambda report: None, fail)
        self._failed, self._runtime = failed, Runtime(self._config, admission, Observer(), listeners, engine_command)
        context = await self._runtime.start()
        from sightline.server.app import answer_routes  # takes a third of a second, in which the engine has begun to load

        self._endpoint: ASGIApp = next(route.app for route in answer_routes(context) if route.path == URL)
        self._runtime.warm_up()
        await self._until_ready()

    async def _until_ready(self) -> None:
        while not self._runtime.engine.ready:
            if self._failed.done():
                self._failed.result()
            await asyncio.sleep(_LOOK_S)

    async def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._answered(batch), self._loop))

    async def _answered(self, table: pyarrow.Table) -> pyarrow.Table:
        plan = self._plan
        for name in (plan.answer_column, plan.error_column):
            if name in table.column_names:
                raise ConfigError(f"The table has a column {name!r} already; name another one.")
        bodies = await asyncio.to_thread(_bodies, table, plan)
        found = await asyncio.gather(*map(self._answer, bodies))
        for name, values in zip((plan.answer_column, plan.error_column), zip(*found, strict=True), strict=True):
            table = table.append_column(name, pyarrow.array(values, pyarrow.string()))
        return table

    async def _answer(self, body: bytes | UserError) -> tuple[str | None, str | None]:
        """(answer, error)"""
        if isinstance(body, UserError):
            return None, str(body)
        key = key_of(self._config.model, body) if self._checkpoint is not None else b""
        if self._checkpoint is not None and (known := self._checkpoint.find(key)) is not None:
            return known, None
        found = await self._ask(body)
        if found.status != 200:
            return None, found.error().message
        answer = _decoder.decode(found.body).choices[0].message.content or ""
        if self._checkpoint is not None:
            self._checkpoint.add(key, answer)
        return answer, None

    async def _ask(self, body: bytes) -> RowAnswer:
        """What is no fault of the row's is tried again: an engine that dies takes the rows with it that are in it."""
        tries = 0
        while True:
            await self._until_ready()
            answer = await ask(self._endpoint, URL, [body], lambda: None)
            if answer.status not in (429, 503):
                return answer
            tries += answer.status == 503 and answer.error().code != "engine_unavailable"
            if tries == TRIES:
                return answer
            await asyncio.sleep(answer.retry_after_s)


def _bodies(table: pyarrow.Table, plan: RowPlan) -> list[bytes | UserError]:
    """A request for each row, or what is wrong with it."""
    images: Sequence[Any] = [None] * len(table)
    if plan.image_column is not None:
        if plan.image_column not in table.column_names:
            raise ConfigError(f"The table has no column {plan.image_column!r}; it has {', '.join(table.column_names)}.")
        images = _values(table.column(plan.image_column))
    prompt = plan.prompt
    prompts = [prompt] * len(table) if isinstance(prompt, str) else [_asked(prompt, row) for row in table.to_pylist()]
    return [_body(text, image, plan.sampling) for text, image in zip(prompts, images, strict=True)]


def _values(column: pyarrow.ChunkedArray) -> Sequence[Any]:
    """Pictures that read_images read are arrays of numbers."""
    kind = str(column.type)
    if "tensor" in kind.lower():
        return [array for chunk in column.chunks for array in chunk.to_numpy(zero_copy_only=False)]
    found: list[Any] = column.to_pylist()
    return found


def _asked(prompt: Callable[[Mapping[str, Any]], str], row: Mapping[str, Any]) -> str | UserError:
    try:
        return str(prompt(row))
    except Exception as error:
        return UserError(f"prompt() failed on this row with {type(error).__name__}: {error}")


def _body(text: str | UserError, images: Any, sampling: Mapping[str, Any]) -> bytes | UserError:
    if isinstance(text, UserError):
        return text
    try:
        sources = [] if images is None else [_url(one) for one in (images if isinstance(images, list | tuple) else [images])]
    except UserError as error:
        return error
    content = [*({"type": "image_url", "image_url": {"url": url}} for url in sources), {"type": "text", "text": text}]
    return msgspec.json.encode({"messages": [{"role": "user", "content": content}], **sampling})


def _url(image: Any) -> str:
    if isinstance(image, str):
        return image
    if isinstance(image, Mapping):
        if image.get("bytes") is not None:
            image = image["bytes"]
        elif isinstance(image.get("path"), str):
            return str(image["path"])
    if hasattr(image, "__array__"):
        image = _png(image)
    if not isinstance(image, bytes | bytearray | memoryview):
        raise UserError(f"An image is a path, a URL, bytes or an array of pixels, not {type(image).__name__}.")
    return f"data:application/octet-stream;base64,{base64.b64encode(image).decode()}"


def _png(pixels: Any) -> bytes:
    import numpy as np
    from PIL import Image

    written = io.BytesIO()
    try:
        Image.fromarray(np.asarray(pixels)).save(written, "png", compress_level=1)
    except (TypeError, ValueError) as error:
        raise UserError(f"An image is an array that is no picture: {error}.") from None
    return written.getvalue()
