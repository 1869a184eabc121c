"""The HTTP application: routes, CORS, and OpenAI's shape for every error."""

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sightline import __version__
from sightline.server.chat import ChatShape
from sightline.server.completions import CompletionShape
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.generation import CLIENT_GONE, GenerationRoute
from sightline.server.inflight import ClientGone
from sightline.server.metrics import Metrics, metrics_route
from sightline.server.openapi import openapi
from sightline.server.operations import operation_routes
from sightline.server.playground_routes import playground_routes


def make_app(context: ServerContext, metrics: Metrics) -> ASGIApp:
    app = FastAPI(title="Sightline", version=__version__, redoc_url=None, redirect_slashes=False)
    chat, completions = GenerationRoute(context, ChatShape()), GenerationRoute(context, CompletionShape())
    app.router.routes += [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        *operation_routes(context),
        metrics_route(metrics, context.engine),
        *playground_routes(),
    ]
    description = openapi(with_keys=bool(context.config.server.api_key))
    app.openapi = lambda: description  # type: ignore[method-assign]
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _unexpected)
    if context.config.server.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=context.config.server.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
        return app
    return _straight_to({"/v1/chat/completions": chat, "/v1/completions": completions}, app)


def _straight_to(routes: Mapping[str, ASGIApp], app: ASGIApp) -> ASGIApp:
    """Requests for answers skip the layers of the application, each of which takes its time of every token that is sent: they
    answer for their own errors, and nobody else is interested in them."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        wanted = routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (wanted or app)(scope, receive, send)

    return front


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)  # nobody reads it


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        shown = ApiError(404, f"There is no endpoint {place}.", code="unknown_endpoint")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        shown = ApiError(405, f"{place} is not offered; use {allowed}.", code="method_not_allowed", headers=error.headers)
    else:
        shown = ApiError(error.status_code, str(error.detail), headers=error.headers)
    return shown.response()


async def _validation_error(request: Request, error: Exception) -> Response:
    return ApiError(422, f"The request is not valid: {error}.").response()


async def _unexpected(request: Request, error: Exception) -> Response:
    return ApiError(500, f"The server failed on this request with {type(error).__name__}.").response()
