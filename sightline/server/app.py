"""The HTTP application: routes, who may call them from a browser, and OpenAI's shape for every error."""

import asyncio
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sightline import __version__
from sightline.models.registry import family_named
from sightline.server.admission import ClientGone
from sightline.server.browsers import guarded
from sightline.server.chat import ChatEndpoint
from sightline.server.completions import CompletionEndpoint
from sightline.server.context import ServerContext
from sightline.server.docs_page import docs_page
from sightline.server.encode_routes import encode_routes
from sightline.server.errors import ApiError, out_of_memory, unavailable
from sightline.server.generation import CLIENT_GONE, GenerationRoute
from sightline.server.messages_api.endpoint import MessagesEndpoint
from sightline.server.metrics import Metrics, metrics_route
from sightline.server.openapi import openapi
from sightline.server.operations import operation_routes
from sightline.server.playground_routes import page_routes
from sightline.server.responses_api.endpoint import ResponsesEndpoint

_WHILE_DRAINING = ("/health", "/ready", "/version", "/metrics")  # what operators ask


def make_app(context: ServerContext, metrics: Metrics, on_loopback: bool) -> ASGIApp:
    """`on_loopback` says that the server listens to its own machine only."""
    # The library's own pages load their scripts from elsewhere.
    app = FastAPI(title="Sightline", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    description = openapi(with_keys=bool(context.config.server.api_key))
    if context.config.server.encoder_only:
        answering = []
        app.router.routes += [*encode_routes(context), *operation_routes(context), metrics_route(metrics, context.engine)]
    else:
        answering = answer_routes(context)
        app.router.routes += [*answering, *other_routes(context, metrics, docs_page(description))]
    app.openapi = lambda: description  # type: ignore[method-assign]
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(MemoryError, _no_memory)
    app.add_exception_handler(Exception, _unexpected)
    server = context.config.server
    if server.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
        )
        return guarded(_unless_draining(app, context.draining), server, on_loopback)
    straight = _straight_to({route.path: route.app for route in answering}, app)
    return guarded(_unless_draining(straight, context.draining), server, on_loopback)


def answer_routes(context: ServerContext) -> list[Route]:
    """Endpoints that are asked for answers of the model."""
    return [
        Route("/v1/chat/completions", GenerationRoute(context, ChatEndpoint()), methods=["POST"]),
        Route("/v1/completions", GenerationRoute(context, CompletionEndpoint()), methods=["POST"]),
        Route("/v1/responses", GenerationRoute(context, ResponsesEndpoint()), methods=["POST"]),
        Route("/v1/messages", GenerationRoute(context, MessagesEndpoint()), methods=["POST"]),
    ]


def other_routes(context: ServerContext, metrics: Metrics, docs: bytes) -> list[Route]:
    pages = page_routes(docs, not context.config.model.model, family_named(context.files.spec.family).coordinates)
    return [*operation_routes(context), metrics_route(metrics, context.engine), *pages]


def _straight_to(routes: Mapping[str, ASGIApp], app: ASGIApp) -> ASGIApp:
    """Requests for answers skip the layers of the application, each of which takes its time of every token that is sent: they
    answer for their own errors, and nobody else is interested in them."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        wanted = routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (wanted or app)(scope, receive, send)

    return front


def _unless_draining(app: ASGIApp, draining: asyncio.Event) -> ASGIApp:
    """A server that is told to stop lets nobody new in, and says so until it closes its door."""

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        if draining.is_set() and scope["type"] == "http" and scope["path"] not in _WHILE_DRAINING:
            refusal = unavailable("The server is shutting down.")
            refusal.headers["Connection"] = "close"
            await refusal.response(scope["path"])(scope, receive, send)
        else:
            await app(scope, receive, send)

    return front


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.url.path)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)  # nobody reads it


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        shown = ApiError(404, f"There is no endpoint {route}.", code="unknown_endpoint")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        shown = ApiError(405, f"{route} is not offered; use {allowed}.", code="method_not_allowed", headers=error.headers)
    else:
        shown = ApiError(error.status_code, str(error.detail), headers=error.headers)
    return shown.response(request.url.path)


async def _validation_error(request: Request, error: Exception) -> Response:
    return ApiError(422, f"The request is not valid: {error}.").response(request.url.path)


async def _no_memory(request: Request, error: Exception) -> Response:
    return out_of_memory().response(request.url.path)


async def _unexpected(request: Request, error: Exception) -> Response:
    return ApiError(500, f"The server failed on this request with {type(error).__name__}.").response(request.url.path)
