"""The small endpoints: what is served, whether it is well, tokens, caches."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sightline import __version__
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.responses import Model, ModelList, Readiness, Version


def json_response(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


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
        raise ApiError(501, "Embeddings are not offered: /v1/embeddings is not implemented.", code="unsupported_endpoint")

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
        Route("/flush_cache", own.flush_cache, methods=["POST"]),
    ]
