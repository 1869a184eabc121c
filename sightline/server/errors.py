"""Every error a client can see, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

Clients of Anthropic's endpoints find theirs around it: {"type": "error", "error": {…}}, with its names of types.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from sightline.engine.messages import EngineFailure
from sightline.errors import (
    HostMemoryError,
    MissingMediaError,
    ParameterError,
    PromptTooLongError,
    UserError,
    without_addresses,
)

_LONGEST = 2000  # characters of a message: what strangers write is not repeated at any length
_PATH = re.compile(r"(?<![\w/:.])/[\w.@+-]+(/[\w.@+-]*)+")
_TYPES = {  # by status; other 4xx are invalid requests, other 5xx server errors
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
ANTHROPIC = "/v1/messages"  # the route of its endpoints
_ANTHROPIC_TYPES = {  # likewise; other 5xx are API errors
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """A request ends with this status and sentence."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, shortened(message), code
        self.param = shortened(param) if param is not None else None
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self, route: str = "") -> dict[str, Any]:
        details = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        if not route.startswith(ANTHROPIC):
            return {"error": details}
        usual = "invalid_request_error" if self.status < 500 else "api_error"
        return {"type": "error", "error": {**details, "type": _ANTHROPIC_TYPES.get(self.status, usual)}}

    def response(self, route: str = "") -> Response:
        """In the shape that clients of this endpoint read."""
        return Response(msgspec.json.encode(self.body(route)), self.status, self.headers, "application/json")


def without_paths(text: str) -> str:
    """What an exception nobody expected says may name files and objects of ours."""
    return _PATH.sub("…", without_addresses(text))


def shortened(text: str) -> str:
    """Without the middle of a very long text."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def refused(error: UserError) -> ApiError:
    """What a user got wrong, as found while reading their request."""
    if isinstance(error, MissingMediaError):
        return ApiError(404, str(error), code="media_not_found")
    if isinstance(error, HostMemoryError):
        return out_of_memory(str(error))
    if isinstance(error, PromptTooLongError):
        return ApiError(400, str(error), param="messages", code="context_length_exceeded")
    return ApiError(400, str(error), param=error.name if isinstance(error, ParameterError) else None)


def failed(failure: EngineFailure) -> ApiError:
    """What the engine said about a request that it could not answer."""
    if failure.kind == "missing_media":
        return ApiError(404, failure.message, code="media_not_found")
    if failure.kind == "out_of_memory":
        return out_of_memory(failure.message)
    if failure.kind == "encoder_away":
        return ApiError(503, failure.message, code="encoder_unavailable", headers={"Retry-After": "2"})
    return ApiError(400, failure.message) if failure.kind == "invalid" else ApiError(500, without_paths(failure.message))


def too_large(limit_mb: float) -> ApiError:
    return ApiError(413, f"The body is larger than the {limit_mb:g} MB allowed (max_request_mb).", code="request_too_large")


def out_of_memory(message: str = "The server has not enough memory free for this request.", after_s: int = 5) -> ApiError:
    """Of the host: nobody's fault, and over when others are done."""
    return ApiError(503, message, code="out_of_memory", headers={"Retry-After": str(after_s)})


def busy(message: str, after_s: int = 1) -> ApiError:
    return ApiError(429, message, code="server_busy", headers={"Retry-After": str(after_s)})


def unavailable(message: str, after_s: int = 2) -> ApiError:
    return ApiError(503, message, code="engine_unavailable", headers={"Retry-After": str(after_s)})
