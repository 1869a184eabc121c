"""What a server with --encoder-only offers: embeddings of files, for servers of the same model (engine/remote/wire.py)."""

import asyncio
import hashlib
import logging
from dataclasses import replace
from typing import NoReturn

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sightline.engine.remote.check_item import check_item
from sightline.engine.remote.wire import (
    CONTENT_TYPE,
    ENCODE,
    HANDSHAKE,
    EncodeHead,
    Identity,
    RowsHead,
    WireError,
    pack,
    unpack,
)
from sightline.errors import UserError
from sightline.media.source import load_media
from sightline.server.admission import ClientGone, Entry
from sightline.server.body import Part, announced_length, read_body
from sightline.server.call import Call
from sightline.server.context import ServerContext
from sightline.server.encoder_client import EncoderClient
from sightline.server.errors import ApiError, out_of_memory, refused
from sightline.server.generation import CLIENT_GONE
from sightline.types import MediaItem

log = logging.getLogger("sightline.server")
_PIECE = 1 << 20  # bytes handed to the connection at once: nobody else waits for the whole
_ELSEWHERE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/",
)


def encode_routes(context: ServerContext) -> list[Route]:
    return [
        Route(HANDSHAKE, Handshake(context).show, methods=["GET"]),
        Route(ENCODE, EncodeRoute(context), methods=["POST"]),
        *(Route(path, _not_here, methods=["GET", "POST"]) for path in _ELSEWHERE),
    ]


async def _not_here(request: Request) -> NoReturn:
    path = request.url.path
    raise ApiError(
        404,
        f"{path} is not offered: this server runs the vision tower alone (encoder_only), for servers with it as encoder_url.",
        code="unsupported_endpoint",
    )


def _engine(context: ServerContext) -> EncoderClient:
    assert isinstance(context.engine, EncoderClient)
    return context.engine


def _identity(context: ServerContext) -> Identity:
    context.require_serving()
    report = context.engine.ready_report
    assert report is not None and report.identity is not None
    return report.identity


class Handshake:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def show(self, request: Request) -> Response:
        """What encodes here."""
        self._context.keys.caller(request.headers)
        return Response(msgspec.json.encode(_identity(self._context)), media_type="application/json")


class EncodeRoute:
    """An ASGI endpoint. A client that goes away ends its encode."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call.begin(ENCODE, "encode-", self._context.weight_version)
        status, refusal = 200, None
        self._context.observer.request_started(ENCODE)
        try:
            with self._context.admission.open() as entry:
                await self._answer(Request(scope), receive, send, entry)
        except ClientGone:
            status = CLIENT_GONE
        except asyncio.CancelledError:  # the server ends
            status = 503
            raise
        except MemoryError:
            refusal = out_of_memory()
        except ApiError as error:
            refusal = error
        except Exception as error:
            log.exception("Encoding for another server failed.")
            refusal = ApiError(500, f"The server failed on this request with {type(error).__name__}.")
        finally:
            status = status if refusal is None else refusal.status
            self._context.finished(call, status, None if refusal is None else refusal.message)
        if refusal is not None:
            await refusal.response(ENCODE)(scope, receive, send)

    async def _answer(self, request: Request, receive: Receive, send: Send, entry: Entry) -> None:
        context, server = self._context, self._context.config.server
        length = announced_length(request.headers, server.max_request_mb)
        caller = context.keys.caller(request.headers)
        identity = _identity(context)
        try:
            parts = await read_body(request.scope, receive, entry, length, server.max_request_mb, server.body_timeout_s)
        finally:
            context.observer.body_waited(entry.waited_s)
        loop = asyncio.get_running_loop()
        item, data = await loop.run_in_executor(context.pool, self._read, parts, identity, caller)
        context.observer.request_received(ENCODE)
        context.observer.item_received(item.ref.kind, len(data))
        encoding = asyncio.ensure_future(_engine(context).encode(item, data))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            async with asyncio.timeout(server.request_timeout_s):
                await asyncio.wait((encoding, gone), return_when=asyncio.FIRST_COMPLETED)
            if not encoding.done():
                raise ClientGone
            head, rows = encoding.result()
        except TimeoutError:
            message = f"Encoding took longer than {server.request_timeout_s:g} s (request_timeout_s)."
            raise ApiError(504, message, code="timeout") from None
        finally:
            for task in (encoding, gone):
                task.cancel()
            await asyncio.gather(encoding, gone, return_exceptions=True)
        entry.settle(len(data) + rows.nbytes)
        await _send_rows(send, head, rows)

    def _read(self, parts: list[Part], identity: Identity, caller: str) -> tuple[MediaItem, memoryview]:
        """In a thread: what is asked, checked. Its key is made here, of what its embeddings follow from and of who asks."""
        body = b"".join(parts)
        parts.clear()
        try:
            asked, data = unpack(EncodeHead, body)
        except WireError as error:
            raise ApiError(400, f"The message cannot be read: {error}.") from None
        if asked.identity != identity.name:
            raise ApiError(409, "This server's tower, processor settings or dtype are not those that were asked for.")
        item = asked.item
        try:
            (found,) = load_media(item.ref.kind, bytes(data), self._context.config.media, name=item.ref.source)
            if (found.digest, found.header) != (item.ref.digest, item.ref.header):
                raise ApiError(400, f"{item.ref.source} is not the file that its digest and its header say.")
            check_item(item, self._context.files.processor)
        except UserError as error:
            raise refused(error) from None
        key = hashlib.sha256(f"{len(caller)} {caller}".encode() + item.key + item.ref.digest)
        key.update(msgspec.msgpack.encode((item.views, item.grids, item.frame_indices, item.frame_times, item.rows)))
        return replace(item.without_bytes(), key=key.digest()), data


async def _send_rows(send: Send, head: RowsHead, rows: memoryview) -> None:
    packed = pack(head)
    headers = [
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(len(packed) + rows.nbytes).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": packed, "more_body": True})
    for first in range(0, rows.nbytes, _PIECE):
        await send({"type": "http.response.body", "body": bytes(rows[first : first + _PIECE]), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
