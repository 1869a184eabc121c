"""The OpenAPI description, from the same types that parse requests and write responses."""

from typing import Any

import msgspec

from sightline import __version__
from sightline.server import protocol, responses
from sightline.server.errors import ANTHROPIC
from sightline.server.messages_api import output as messages_output
from sightline.server.messages_api.body import CountTokensRequest, MessagesRequest
from sightline.server.responses_api import output as responses_output
from sightline.server.responses_api.body import ResponsesRequest

# path, method, summary, body of the request, body of the response, body of each event of a stream
_ENDPOINTS: tuple[tuple[str, str, str, type | None, type | None, type | None], ...] = (
    (
        *("/v1/chat/completions", "post", "Answer a conversation with text, images and videos"),
        *(protocol.ChatRequest, responses.ChatCompletion, responses.ChatChunk),
    ),
    (
        *("/v1/completions", "post", "Continue a prompt"),
        *(protocol.CompletionRequest, responses.Completion, responses.Completion),
    ),
    (
        *("/v1/responses", "post", "Answer a conversation, as OpenAI's newer API"),
        *(ResponsesRequest, responses_output.Response, responses_output.ResponseEvent),
    ),
    (
        *("/v1/messages", "post", "Answer a conversation, as Anthropic's API"),
        *(MessagesRequest, messages_output.Message, messages_output.MessageEvent),
    ),
    (
        *("/v1/messages/count_tokens", "post", "Tokens of the prompt of a conversation, as Anthropic's API"),
        *(CountTokensRequest, messages_output.TokenCount, None),
    ),
    (
        "/v1/models",
        "get",
        "What is served; by anthropic-version as Anthropic's API",
        None,
        responses.ModelList,
        None,
    ),
    ("/v1/models/{model}", "get", "One of what is served", None, responses.Model, None),
    ("/get_model_info", "get", "What is served, as SGLang tells it", None, responses.ModelInfo, None),
    ("/server_info", "get", "What runs, and with which settings", None, responses.ServerInfo, None),
    ("/get_server_info", "get", "The same by its older name", None, responses.ServerInfo, None),
    ("/tokenize", "post", "Token ids of a prompt or of messages", protocol.TokenizeRequest, responses.TokenizeResponse, None),
    ("/detokenize", "post", "Text of token ids", protocol.DetokenizeRequest, responses.DetokenizeResponse, None),
    ("/health", "get", "Whether the process is alive", None, None, None),
    ("/ready", "get", "Whether requests are answered", None, responses.Readiness, None),
    ("/version", "get", "Which version runs", None, responses.Version, None),
    ("/stats", "get", "Counters of the engine (admin key)", None, None, None),
    ("/flush_cache", "post", "Forget cached prefixes and images (admin key)", None, None, None),
)
_OPEN = ("/health", "/ready", "/version")  # no key needed


def openapi(with_keys: bool) -> dict[str, Any]:
    types = [kind for endpoint in _ENDPOINTS for kind in endpoint[3:] if kind is not None]
    unique = list(dict.fromkeys([*types, responses.Error, messages_output.Error]))
    schemas, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Any] = {}
    for path, method, summary, body, response, chunk in _ENDPOINTS:
        operation: dict[str, Any] = {"summary": summary, "operationId": path.strip("/").replace("/", "_").strip("{}")}
        if "{model}" in path:
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        if body is not None:
            operation["requestBody"] = {"required": True, "content": _json(schema_of[body])}
        content = _json(schema_of[response]) if response is not None else _json({"type": "object"})
        if chunk is not None:
            content["text/event-stream"] = {"schema": schema_of[chunk]}
        error = messages_output.Error if path.startswith(ANTHROPIC) else responses.Error
        operation["responses"] = {
            "200": {"description": "Success", "content": content},
            "default": {"description": "Any error", "content": _json(schema_of[error])},
        }
        if with_keys and path not in _OPEN:
            operation["security"] = [{"key": []}]
        paths.setdefault(path, {})[method] = operation
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Sightline", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if with_keys:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
