"""/docs: the OpenAPI description as a page, written once at the start. It has no script and needs nothing from elsewhere."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_REF = "#/components/schemas/"


def docs_page(description: Mapping[str, Any]) -> bytes:
    title = f"{description['info']['title']} {description['info']['version']}"
    schemas = description["components"]["schemas"]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}: API</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="/playground/icon.svg"><link rel="stylesheet" href="/playground/docs.css"></head><body>',
        f'<h1>{escape(title)}</h1><p>The same as <a href="/openapi.json">/openapi.json</a>, to be read.</p><h2>Endpoints</h2>',
        *(part for path, methods in description["paths"].items() for part in _endpoint(path, methods)),
        "<h2>Types</h2>",
        *(part for name, schema in schemas.items() for part in _type(name, schema)),
        "</body></html>",
    ]
    return "\n".join(parts).encode()


def _endpoint(path: str, methods: Mapping[str, Any]) -> Iterator[str]:
    for method, operation in methods.items():
        yield f"<section><h3><code>{method.upper()} {escape(path)}</code></h3><p>{escape(operation['summary'])}"
        yield " (needs an API key)</p>" if operation.get("security") else "</p>"
        rows = [("body", content) for content in operation.get("requestBody", {}).get("content", {}).items()]
        for status, response in operation["responses"].items():
            rows += [("error" if status == "default" else status, content) for content in response["content"].items()]
        yield "<table>"
        for what, (kind, content) in rows:
            yield f"<tr><th>{escape(what)}</th><td>{escape(kind)}</td><td>{_shown(content['schema'])}</td></tr>"
        yield "</table></section>"


def _type(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section><h3 id="{escape(name)}">{escape(name)}</h3>'
    if schema.get("description"):
        yield f"<p>{escape(schema['description'])}</p>"
    if "properties" in schema:
        required = set(schema.get("required", ()))
        yield "<table>"
        for field, own in schema["properties"].items():
            need = "required" if field in required else ""
            yield f"<tr><th>{escape(field)}</th><td>{_shown(own)}</td><td>{need}</td></tr>"
        yield "</table>"
    else:
        yield f"<p>{_shown(schema)}</p>"
    yield "</section>"


def _shown(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to the types that it names."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).removeprefix(_REF))
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_shown, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(repr(schema['const']))}</code>"
    kind = escape(str(schema.get("type", "anything")))
    if kind == "array" and "items" in schema:
        return f"list of {_shown(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_shown(schema['additionalProperties'])}"
    limits = [f"{word} {schema[key]}" for key, word in _LIMITS.items() if key in schema]
    return kind + (f" ({', '.join(limits)})" if limits else "")


_LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "shortest",
    "maxLength": "longest",
}
