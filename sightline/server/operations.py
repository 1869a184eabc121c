"""The small endpoints: what is served, whether it is well, tokens, caches."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sightline import __version__
from sightline.errors import UserError
from sightline.prompt.request import refuse_far_too_long
from sightline.server.chat_prompt import complete_prompt, draft_prompt
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError, refused
from sightline.server.form import plain_tools
from sightline.server.inflight import Entry, check_announced, read_body
from sightline.server.parse import parse
from sightline.server.protocol import DetokenizeRequest, TokenizeRequest
from sightline.server.responses import DetokenizeResponse, Model, ModelList, Readiness, TokenizeResponse, Version
from sightline.server.token_text import token_text


def json_response(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


B = TypeVar("B", TokenizeRequest, DetokenizeRequest)
R = TypeVar("R")
_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


class Operations:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def health(self, request: Request) -> Response:
        """The process is alive. Says nothing about the engine: a restart of this process would not help one that loads."""
        return Response(b"{}", media_type="application/json")

    async def ready(self, request: Request) -> Response:
        engine = self._context.engine
        ready = engine.ready and not self._context.draining.is_set()
        body = Readiness(ready=ready, engine=engine.state.value, restarts=engine.restarts)
        return json_response(body, 200 if ready else 503)

    async def version(self, request: Request) -> Response:
        return json_response(Version(version=__version__))

    async def models(self, request: Request) -> Response:
        self._context.keys.caller(request.headers)
        return json_response(ModelList(data=[self._model(name) for name in self._context.model_names]))

    async def model(self, request: Request) -> Response:
        self._context.keys.caller(request.headers)
        return json_response(self._model(self._context.check_model(request.path_params["name"])))

    def _model(self, name: str) -> Model:
        context = self._context
        root = context.config.model.model or str(context.files.folder)
        return Model(id=name, created=context.started, root=root, max_model_len=context.files.max_model_len)

    async def embeddings(self, request: Request) -> Response:
        self._context.keys.caller(request.headers)
        raise ApiError(404, "Embeddings are not offered: /v1/embeddings is not implemented.", code="unsupported_endpoint")

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt, or of messages as the chat template writes them; media count with all their tokens."""
        with self._context.ledger.open() as entry:
            body, caller = await self._body(request, _tokenize, entry)
            try:
                tokens = await self._tokens(body, caller, entry)
            except UserError as error:
                raise refused(error) from None
            return await self._off_loop(self._tokenized, tokens, bool(body.return_token_strs))

    async def _tokens(self, body: TokenizeRequest, caller: str, entry: Entry) -> list[int]:
        if body.messages is not None and body.prompt is None:
            fields = (body.messages, plain_tools(body.tools), body.chat_template_kwargs, body.mm_processor_kwargs)
            draft = await self._off_loop(draft_prompt, self._context, *fields, {}, False)
            prompt = await complete_prompt(self._context, draft, caller, entry)
            ids: list[int] = prompt.request.token_ids.tolist()
            return ids
        if body.prompt is not None and body.messages is None:
            return await self._off_loop(self._encode, body.prompt)
        raise ApiError(400, "The body must have either 'prompt' or 'messages'.")

    def _encode(self, text: str) -> list[int]:
        files = self._context.files
        refuse_far_too_long(text, files.tokenizer, files.max_model_len)
        return files.tokenizer.encode(text)

    def _tokenized(self, tokens: list[int], with_strings: bool) -> Response:
        files = self._context.files
        strings = [token_text(files.tokenizer, token) for token in tokens] if with_strings else UNSET
        return json_response(
            TokenizeResponse(count=len(tokens), max_model_len=files.max_model_len, tokens=tokens, token_strs=strings)
        )

    async def detokenize(self, request: Request) -> Response:
        with self._context.ledger.open() as entry:
            body, _ = await self._body(request, _detokenize, entry)
            text = await self._off_loop(self._context.files.tokenizer.decode, body.tokens, False)
            return json_response(DetokenizeResponse(prompt=text))

    async def _off_loop(self, function: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._context.pool, function, *arguments)

    async def _body(self, request: Request, decoder: msgspec.json.Decoder[B], entry: Entry) -> tuple[B, str]:
        """A body within limits from a caller with a key, its model checked."""
        server = self._context.config.server
        check_announced(request.headers.get("content-length"), server.max_request_mb)
        caller = self._context.keys.caller(request.headers)
        data = await read_body(request.scope, request.receive, entry, server.max_request_mb, server.body_timeout_s)
        body = await self._off_loop(lambda: parse(b"".join(data), decoder))
        self._context.check_model(body.model)
        return body, caller

    async def stats(self, request: Request) -> Response:
        """What the engine counts, as of now, and what the requests in progress hold."""
        self._context.keys.require_admin(request.headers)
        ledger = self._context.ledger
        own = {"inflight_requests": ledger.requests, "inflight_bytes": ledger.bytes, "engine_pid": self._context.engine.pid}
        stats = msgspec.to_builtins(await self._context.engine.fresh_stats())
        return Response(msgspec.json.encode({**stats, **own}), media_type="application/json")

    async def flush_cache(self, request: Request) -> Response:
        self._context.keys.require_admin(request.headers)
        await self._context.engine.flush()
        return Response(b"{}", media_type="application/json")


def operation_routes(context: ServerContext) -> list[Route]:
    own = Operations(context)
    return [
        Route("/health", own.health, methods=["GET"]),
        Route("/ready", own.ready, methods=["GET"]),
        Route("/version", own.version, methods=["GET"]),
        Route("/v1/models", own.models, methods=["GET"]),
        Route("/v1/models/{name:path}", own.model, methods=["GET"]),
        Route("/v1/embeddings", own.embeddings, methods=["POST"]),
        Route("/tokenize", own.tokenize, methods=["POST"]),
        Route("/detokenize", own.detokenize, methods=["POST"]),
        Route("/stats", own.stats, methods=["GET"]),
        Route("/flush_cache", own.flush_cache, methods=["POST"]),
    ]
