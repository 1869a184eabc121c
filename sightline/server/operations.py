"""The small endpoints: what is served, whether it is well, tokens, caches."""

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sightline import __version__
from sightline.errors import UserError
from sightline.prompt.context_length import refuse_far_too_long
from sightline.server.admission import Entry
from sightline.server.body import announced_length, read_body
from sightline.server.chat_prompt import complete_prompt, draft_prompt, options_of
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError, refused
from sightline.server.messages_api import output as anthropic
from sightline.server.messages_api.body import CountTokensRequest
from sightline.server.messages_api.endpoint import begin_count, finish_count
from sightline.server.parse import Decoder, decoder_of, parse
from sightline.server.protocol import DetokenizeRequest, TokenizeRequest
from sightline.server.response_format import plain_tools
from sightline.server.responses import (
    DetokenizeResponse,
    EngineInfo,
    Model,
    ModelInfo,
    ModelList,
    Readiness,
    ServerInfo,
    TokenizeResponse,
    Version,
)
from sightline.server.template_fields import final_text, template_kwargs
from sightline.server.token_text import token_text

_ANTHROPIC_VERSION = "anthropic-version"  # the header that its clients send


def json_response(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


B = TypeVar("B", TokenizeRequest, DetokenizeRequest, CountTokensRequest)
R = TypeVar("R")


class Operations:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        lenient = context.config.server.ignore_unknown_fields
        self._tokenize, self._detokenize = decoder_of(TokenizeRequest, lenient), decoder_of(DetokenizeRequest, lenient)
        self._count = decoder_of(CountTokensRequest, lenient)

    async def health(self, request: Request) -> Response:
        """The process is alive. Says nothing about the engine: a restart of this process would not help one that loads."""
        return Response(b"{}", media_type="application/json")

    async def ready(self, request: Request) -> Response:
        engine = self._context.engine
        draining = self._context.draining.is_set()
        ready = engine.ready and not draining
        why = "The server is shutting down." if draining else engine.condition
        body = Readiness(ready=ready, engine=engine.state.value, restarts=engine.restarts, message=UNSET if ready else why)
        return json_response(body, 200 if ready else 503)

    async def version(self, request: Request) -> Response:
        return json_response(Version(version=__version__))

    async def models(self, request: Request) -> Response:
        self._context.keys.caller(request.headers)
        names = self._context.model_names
        if _ANTHROPIC_VERSION in request.headers:
            listed = [self._anthropic_model(name) for name in names]
            return json_response(anthropic.ModelList(data=listed, first_id=names[0], last_id=names[-1]))
        return json_response(ModelList(data=[self._model(name) for name in names]))

    async def model(self, request: Request) -> Response:
        self._context.keys.caller(request.headers)
        name = self._context.check_model(request.path_params["name"])
        return json_response(self._anthropic_model(name) if _ANTHROPIC_VERSION in request.headers else self._model(name))

    def _model(self, name: str) -> Model:
        context = self._context
        return Model(id=name, created=context.started, root=context.model_names[0], max_model_len=context.files.max_model_len)

    def _anthropic_model(self, name: str) -> anthropic.Model:
        started = datetime.fromtimestamp(self._context.started, UTC).isoformat()
        most = self._context.files.max_model_len
        return anthropic.Model(id=name, display_name=name, created_at=started, max_input_tokens=most)

    async def model_info(self, request: Request) -> Response:
        self._context.keys.caller(request.headers)
        context = self._context
        name = context.model_names[0]
        return json_response(
            ModelInfo(
                model_path=name,
                tokenizer_path=name,
                weight_version=context.weight_version,
                has_image_understanding=True,
                has_video_understanding=context.files.processor.video is not None,
                model_type=context.files.spec.family,
            )
        )

    async def server_info(self, request: Request) -> Response:
        """What runs. No paths and no keys: settings of the engine have neither."""
        self._context.keys.caller(request.headers)
        context = self._context
        return json_response(
            ServerInfo(
                version=__version__,
                model_path=context.model_names[0],
                served_model_name=list(context.model_names),
                weight_version=context.weight_version,
                max_model_len=context.files.max_model_len,
                engine=dataclasses.asdict(context.config.engine),
                internal_states=[
                    EngineInfo(
                        status=engine.state.value,
                        restarts=engine.restarts,
                        device=engine.ready_report.device if engine.ready_report is not None else None,
                        dtype=engine.ready_report.dtype if engine.ready_report is not None else None,
                        tilings=(engine.ready_report.tilings or None) if engine.ready_report is not None else None,
                    )
                    for engine in context.engine.members
                ],
            )
        )

    async def embeddings(self, request: Request) -> Response:
        self._context.keys.caller(request.headers)
        raise ApiError(404, "Embeddings are not offered: /v1/embeddings is not implemented.", code="unsupported_endpoint")

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt, or of messages as the chat template writes them; media count with all their tokens."""
        with self._context.admission.open() as entry:
            body, caller = await self._body(request, self._tokenize, entry)
            try:
                tokens = await self._tokens(body, caller, entry)
            except UserError as error:
                raise refused(error) from None
            return await self._off_loop(self._tokenized, tokens, bool(body.return_token_strs))

    async def _tokens(self, body: TokenizeRequest, caller: str, entry: Entry) -> list[int]:
        if body.messages is not None and body.prompt is None:
            kwargs = template_kwargs(self._context.prompts.template, body)
            if body.continue_final_message:
                final_text(body.messages)  # refuses what cannot be continued
            fields = (body.messages, plain_tools(body.tools), kwargs, options_of(body))
            draft = await self._off_loop(draft_prompt, self._context, *fields, {}, False, bool(body.continue_final_message))
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

    async def count_tokens(self, request: Request) -> Response:
        """As many as /v1/messages would say of the same body."""
        with self._context.admission.open() as entry:
            body, caller = await self._body(request, self._count, entry)
            try:
                begun, origins = await self._off_loop(begin_count, self._context, body, caller)
                return json_response(await finish_count(self._context, begun, origins, caller, entry))
            except UserError as error:
                raise refused(error) from None

    async def detokenize(self, request: Request) -> Response:
        with self._context.admission.open() as entry:
            body, _ = await self._body(request, self._detokenize, entry)
            text = await self._off_loop(self._context.files.tokenizer.decode, body.tokens, False)
            return json_response(DetokenizeResponse(prompt=text))

    async def _off_loop(self, function: Callable[..., R], *arguments: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._context.pool, function, *arguments)

    async def _body(self, request: Request, decoder: Decoder[B], entry: Entry) -> tuple[B, str]:
        """A body within limits from a caller with a key, its model checked."""
        server = self._context.config.server
        length = announced_length(request.headers, server.max_request_mb)
        caller = self._context.keys.caller(request.headers)
        limits = (server.max_request_mb, server.body_timeout_s)
        data = await read_body(request.scope, request.receive, entry, length, *limits)
        body = await self._off_loop(lambda: parse(b"".join(data), decoder))
        self._context.check_model(body.model)
        return body, caller

    async def stats(self, request: Request) -> Response:
        """What the engine counts, as of now, and what the requests in progress hold."""
        self._context.keys.require_admin(request.headers)
        admission = self._context.admission
        own = {
            "inflight_requests": admission.requests,
            "inflight_bytes": admission.bytes,
            "num_requests_unread": admission.waiting,
            "engine_pid": self._context.engine.members[0].pid,
            "engine_pids": [engine.pid for engine in self._context.engine.members],
        }
        stats = msgspec.to_builtins(await self._context.engine.fresh_stats())
        return Response(msgspec.json.encode({**stats, **own}), media_type="application/json")

    async def flush_cache(self, request: Request) -> Response:
        self._context.keys.require_admin(request.headers)
        self._context.known_files.clear()
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
        Route("/get_model_info", own.model_info, methods=["GET"]),
        Route("/server_info", own.server_info, methods=["GET"]),
        Route("/get_server_info", own.server_info, methods=["GET"]),
        Route("/v1/embeddings", own.embeddings, methods=["POST"]),
        Route("/tokenize", own.tokenize, methods=["POST"]),
        Route("/detokenize", own.detokenize, methods=["POST"]),
        Route("/v1/messages/count_tokens", own.count_tokens, methods=["POST"]),
        Route("/stats", own.stats, methods=["GET"]),
        Route("/flush_cache", own.flush_cache, methods=["POST"]),
    ]
