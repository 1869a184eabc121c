"""The way of a request for answers: read, check, prepare, submit, send, whatever the shape of its body and of its answer.

A client that goes away ends the work at once, in each stage: the connection is watched from the moment the body is there.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sightline.engine.messages import UpdateHead
from sightline.errors import UserError
from sightline.media.data_url import EmbeddedFile
from sightline.server.admission import ClientGone, Entry
from sightline.server.body import Part, announced_length, read_body
from sightline.server.body_files import Files, parse_with_files
from sightline.server.call import Call
from sightline.server.context import ServerContext
from sightline.server.engine_client import UpdateQueue
from sightline.server.engine_group import RoutedAnswers
from sightline.server.errors import ApiError, out_of_memory, refused, unavailable
from sightline.server.parse import Decoder, decoder_of, parse
from sightline.server.request_log import loggable
from sightline.submission import Submission

T = TypeVar("T")
B = TypeVar("B")  # a body
I = TypeVar("I")  # noqa: E741  what is made of it first
log = logging.getLogger("sightline.server")

SMALL_BODY = 4096  # bytes; work on more than this is done in a thread
SMALL_ANSWER = 512  # tokens; with log-probabilities, writing more than this takes more than a few milliseconds
CLIENT_GONE = 499
_SAY_S = 5.0
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must pass events on as they come
]


class ReplyWriter(Protocol):
    """How answers are written."""

    def take(self, batch: Sequence[tuple[int, UpdateHead]]) -> None: ...
    def body(self) -> bytes: ...
    def events(self, batch: Sequence[tuple[int, UpdateHead]]) -> bytes: ...
    def closing(self) -> bytes: ...
    def failure(self, error: ApiError) -> bytes: ...
    def texts(self) -> list[str]: ...


class Endpoint(Protocol[B, I]):
    """What is special to one endpoint."""

    route: str
    prefix: str  # of ids
    body: type[B]

    def media_urls(self, body: B) -> Iterator[str]:
        """The URLs of its images and videos."""

    def begin(self, context: ServerContext, body: B, files: Files, on_loop: bool, caller: str) -> I:
        """Checks a body and does all that needs no waiting: on the event loop what takes no time, in a thread all of it."""

    async def prepare(
        self, context: ServerContext, begun: I, call: Call, caller: str, entry: Entry
    ) -> tuple[tuple[Submission, ...], "NewReply"]:
        """The prompts, and how their answers are written. Sets call.prompts and call.stream."""


NewReply = Callable[[], ReplyWriter]  # again if another engine begins anew with what nobody has been told; holds no media


class GenerationRoute(Generic[B, I]):
    """An ASGI endpoint."""

    def __init__(self, context: ServerContext, endpoint: Endpoint[B, I]) -> None:
        self._context, self._endpoint = context, endpoint
        self._decoder = decoder_of(endpoint.body, context.config.server.ignore_unknown_fields)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call.begin(self._endpoint.route, self._endpoint.prefix, self._context.weight_version)
        await _Exchange(self._context, self._endpoint, self._decoder, call, scope, receive, send).run()


class _Exchange(Generic[B, I]):
    """One request and its response."""

    def __init__(
        self,
        context: ServerContext,
        endpoint: Endpoint[B, I],
        decoder: Decoder[B],
        call: Call,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._context, self._endpoint, self._decoder, self._call = context, endpoint, decoder, call
        self._scope, self._receive, self._send = scope, receive, send
        self._started = False  # the response's head has gone out
        self._body: list[Part] = []
        self._reply: ReplyWriter | None = None

    async def run(self) -> None:
        status, sentence = 200, None
        self._context.observer.request_started(self._call.route)
        try:
            with self._context.admission.open() as entry:
                await self._answer(Headers(scope=self._scope), entry)
        except ClientGone:
            status, sentence = CLIENT_GONE, "The client closed the connection."
        except asyncio.CancelledError:  # the server ends; to raise it again would only be logged, once for each stream
            status, sentence = 503, "The server is shutting down."
            await self._say(unavailable(sentence))
        except MemoryError:
            error = out_of_memory()
            status, sentence = error.status, error.message
            await self._say(error)
        except ApiError as error:
            status, sentence = error.status, error.message
            await self._say(error)
        except Exception as error:
            log.exception("Request %s failed.", self._call.id)
            status, sentence = 500, f"The server failed on this request with {type(error).__name__}."
            await self._say(ApiError(500, sentence))
        finally:
            if self._reply is not None and self._context.config.server.log_content:
                self._call.content["answers"] = self._reply.texts()
            self._context.finished(self._call, status, sentence)

    async def _answer(self, headers: Headers, entry: Entry) -> None:
        server = self._context.config.server
        length = announced_length(headers, server.max_request_mb)
        caller = self._context.keys.caller(headers)
        self._context.require_serving()
        try:
            limits = (server.max_request_mb, server.body_timeout_s)
            self._body = await read_body(self._scope, self._receive, entry, length, *limits)
        finally:
            self._context.observer.body_waited(entry.waited_s)
        self._context.observer.request_received(self._endpoint.route)
        gone = asyncio.ensure_future(_disconnected(self._receive))
        try:
            async with asyncio.timeout(server.request_timeout_s):
                await _unless(gone, self._work(caller, entry))
        except TimeoutError:
            raise ApiError(
                504, f"The request took longer than {server.request_timeout_s:g} s (request_timeout_s).", code="timeout"
            ) from None
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _work(self, caller: str, entry: Entry) -> None:
        context, call = self._context, self._call
        prompts, new_reply = await self._prepare(caller, entry)
        self._reply = new_reply()
        self._note_items(prompts)
        entry.settle(sum(prompt.size for prompt in call.prompts))
        answers = context.engine.submit(prompts, None if call.stream else partial(self._begin_again, new_reply))
        del prompts  # their media are the engine's now
        try:
            if call.stream:
                await self._stream(answers, self._reply)
            else:
                async for batch in answers.batches():
                    self._note(batch)
                    self._reply.take(batch)
                await self._send_whole(await self._written(self._reply))
        finally:
            answers.release()

    def _begin_again(self, new_reply: NewReply) -> None:
        """The client has been told nothing, and another engine answers from the beginning."""
        self._call.begin_again()
        self._reply = new_reply()

    async def _prepare(self, caller: str, entry: Entry) -> tuple[tuple[Submission, ...], NewReply]:
        body, self._body = self._body, []  # no longer than needed: it may be large
        try:
            if sum(map(len, body)) <= SMALL_BODY:
                begun = self._begin(body, True, caller)
            else:
                try:
                    begun = await asyncio.get_running_loop().run_in_executor(
                        self._context.pool, self._begin, body, False, caller
                    )
                finally:
                    body.clear()  # a thread that comes to a request whose client has left would hold it until then
            del body
            return await self._endpoint.prepare(self._context, begun, self._call, caller, entry)
        except UserError as error:
            raise refused(error) from None

    def _begin(self, parts: list[Part], on_loop: bool, caller: str) -> I:
        body, files = b"".join(parts), dict[str, EmbeddedFile]()
        parts.clear()
        if self._context.config.server.log_content:
            parsed = parse(body, self._decoder)
            self._call.content["request"] = loggable(parsed)
        else:
            parsed, files = parse_with_files(body, self._decoder, self._endpoint.media_urls)
        del body
        return self._endpoint.begin(self._context, parsed, files, on_loop, caller)

    async def _written(self, reply: ReplyWriter) -> bytes:
        if self._call.completion_tokens <= SMALL_ANSWER:
            return reply.body()
        return await asyncio.get_running_loop().run_in_executor(self._context.pool, reply.body)

    async def _stream(self, answers: UpdateQueue | RoutedAnswers, reply: ReplyWriter) -> None:
        """The head goes out with the first token: what fails before it is an ordinary error with a status of its own."""
        async for batch in answers.batches():
            self._note(batch)
            await self._send_event(reply.events(batch))
        await self._send_event(reply.closing())
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _note_items(self, prompts: Sequence[Submission]) -> None:
        for prompt in prompts:
            for item in prompt.request.items:
                self._context.observer.item_received(item.ref.kind, len(item.ref.data))

    def _note(self, batch: Sequence[tuple[int, UpdateHead]]) -> None:
        now = time.perf_counter()
        for index, update in batch:
            last = self._call.last_told.get(index)
            if update.token_ids:
                self._context.observer.tokens_received(len(update.token_ids), None if last is None else now - last)
                self._call.last_told[index] = now
            self._call.note(index, update)

    async def _send_event(self, data: bytes) -> None:
        if not data:
            return
        if not self._started:
            self._started = True
            headers = [*_EVENT_HEADERS, (b"x-request-id", self._call.id.encode())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send_whole(self, body: bytes) -> None:
        self._started = True
        await Response(body, 200, {"X-Request-Id": self._call.id}, "application/json")(self._scope, self._receive, self._send)

    async def _say(self, error: ApiError) -> None:
        """As a response, or as the last event of a stream that has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SAY_S):  # a client that does not read must not hold us
                await self._say_now(error)

    async def _say_now(self, error: ApiError) -> None:
        if not self._started:
            error.headers["X-Request-Id"] = self._call.id
            await error.response(self._endpoint.route)(self._scope, self._receive, self._send)
        elif self._call.stream and self._reply is not None:
            await self._send({"type": "http.response.body", "body": self._reply.failure(error), "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless(gone: "asyncio.Future[None]", work: Coroutine[Any, Any, T]) -> T:
    """Does the work, unless the client goes away first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
