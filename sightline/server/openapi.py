"""The OpenAPI description, from the same types that parse requests and write responses."""

from typing import Any

import msgspec

from sightline import __version__
from sightline.server import protocol, responses

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
    ("/v1/models", "get", "What is served", None, responses.ModelList, None),
    ("/v1/models/{model}", "get", "One of what is served", None, responses.Model, None),
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
    unique = list(dict.fromkeys([*types, responses.Error]))
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
        operation["responses"] = {
            "200": {"description": "Success", "content": content},
            "default": {"description": "Any error", "content": _json(schema_of[responses.Error])},
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
