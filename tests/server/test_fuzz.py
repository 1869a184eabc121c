"""Every field of every endpoint, with what belongs there and with what does not: never a 5xx, never a traceback in the log.

Endpoints come from the route table, their fields from the types that parse bodies, so that new ones join by themselves.
"""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from server.running import RunningServer, running
from server.schema_fuzz import Bodies, Path
from server.wire import connection, read_answer
from sightline.config import Config
from sightline.server.admission import AdmissionBudget
from sightline.server.app import answer_routes, other_routes
from sightline.server.metrics import Metrics
from sightline.server.openapi import openapi
from sightline.server.protocol import Formed, Sampling

FEW, MANY = 20, 200  # examples of each field
TRANSLATED = ("/v1/responses", "/v1/messages", "/v1/messages/count_tokens")  # most of their fields are those of a chat
FORMS = set(Formed.__struct_fields__) - set(Sampling.__struct_fields__)  # compiled in processes of their own
DESCRIBED = openapi(with_keys=False)
PLAYGROUND = ("/playground/about", "/playground/samples", "/playground/samples/{name}", "/playground/{name}")
PAGES = ("/", "/docs", "/metrics", *PLAYGROUND, "/v1/embeddings")
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")


def route_table() -> list[tuple[str, str]]:
    """(method, path) of all that a server serves."""
    context: Any = SimpleNamespace(
        config=Config(),
        files=SimpleNamespace(spec=SimpleNamespace(family="qwen3-vl")),
        engine=SimpleNamespace(work_age_s=0.0),
        draining=asyncio.Event(),
    )
    routes = [*answer_routes(context), *other_routes(context, Metrics(AdmissionBudget(1, 1), "x"), b"")]
    return sorted((method, route.path) for route in routes for method in (route.methods or ()) if method != "HEAD")


def described(path: str) -> str:
    return path.replace("{name:path}", "{model}")


BODIES = {
    path: Bodies(operation["requestBody"]["content"]["application/json"]["schema"], DESCRIBED["components"]["schemas"])
    for path, methods in DESCRIBED["paths"].items()
    for operation in methods.values()
    if "requestBody" in operation
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Answers are short, and nothing is fetched."""
    flags = "--max-output-tokens 8 --default-max-tokens 4 --max-n 3 --no-allow-http --max-request-mb 4 --kv-cache-gb 0.2"
    with running(tmp_path_factory.mktemp("fuzzed"), *flags.split()) as made:
        yield made
        assert "Traceback" not in made.errors, made.errors[-5000:]


def test_every_route_is_described_or_a_page() -> None:
    """Red when an endpoint is added and not described: it would not be tried here."""
    for method, path in route_table():
        assert path in PAGES or method.lower() in DESCRIBED["paths"].get(described(path), {}), (method, path)
    posts = {described(path) for method, path in route_table() if method == "POST" and path not in PAGES}
    assert posts - {"/flush_cache"} == set(BODIES), "a route with a body has its type in openapi.py"
    assert sum(len(bodies.fields()) for bodies in BODIES.values()) > 150


def try_field(server: RunningServer, path: str, field: Path, examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(BODIES[path].strategy(field))
    def is_answered(body: Any) -> None:
        data = json.dumps(body).encode()
        response = server.http.post(path, content=data, headers={"Content-Type": "application/json"})
        check(response, data)

    is_answered()


def check(response: httpx.Response, sent: bytes) -> None:
    assert response.status_code < 500 and response.status_code // 100 in (2, 4), (
        response.status_code,
        response.text,
        sent[:2000],
    )
    if response.status_code >= 400:
        body = response.json()
        error = body["error"]
        assert body.get("type") == ("error" if "/v1/messages" in str(response.url) else None)
        assert set(error) == {"message", "type", "param", "code"} and error["message"], response.text


def try_all(server: RunningServer, path: str, examples: int) -> None:
    pid = server.stats()["engine_pid"]
    for field in BODIES[path].fields():
        fewer = path in TRANSLATED or field[0] in FORMS
        try_field(server, path, field, examples // 10 if fewer else examples)
    stats = server.until_idle()
    assert stats["engine_pid"] == pid, "the engine was started again"
    assert "Traceback" not in server.errors, server.errors[-5000:]


@pytest.mark.parametrize("path", sorted(BODIES))
def test_every_field(server: RunningServer, path: str) -> None:
    """Red when a value that a client may send is answered with a 5xx, or leaves a traceback."""
    try_all(server, path, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(BODIES))
def test_every_field_often(server: RunningServer, path: str) -> None:
    try_all(server, path, MANY)


def test_minimal_bodies_are_good(server: RunningServer) -> None:
    """Else the others would be refused for something else than what was put into them."""
    for path, bodies in BODIES.items():
        body = bodies.good()
        if path == "/tokenize":
            body = {"prompt": "Hello"}
        elif path == "/v1/chat/completions" or path.startswith("/v1/messages"):
            body = {**body, "messages": [{"role": "user", "content": "Hello"}]}
        assert server.http.post(path, json=body).status_code == 200, (path, body)


_odd_text = st.text(st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\r\n"), max_size=30)


@pytest.mark.parametrize(("method", "path"), route_table(), ids=lambda value: str(value))
def test_every_route_by_every_method_and_path(server: RunningServer, method: str, path: str) -> None:
    """Odd names in paths, odd queries, odd headers, other methods. Red as above."""

    @settings(max_examples=FEW, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from((method, method, *_METHODS)),
        _odd_text,
        _odd_text,
        _odd_text,
        st.sampled_from((b"", b"{}", b"[]", b"\xff", b"null")),
    )
    def is_answered(used: str, name: str, query: str, header: str, body: bytes) -> None:
        quoted = "".join(f"%{byte:02x}" for byte in name.encode("latin-1"))
        target = path.replace("{name:path}", quoted).replace("{name}", quoted).replace(" ", "%20")
        lines = [f"{used} {target}?{httpx.QueryParams({query: name})} HTTP/1.1", "Host: localhost", f"X-Odd: {header}"]
        lines += [f"Authorization: {header}", f"Accept: {query.strip()}", f"Content-Length: {len(body)}", "Connection: close"]
        with connection(server) as client:
            client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            answer = read_answer(client, used)
        assert answer.status < 500 and answer.status // 100 in (2, 4), (answer, lines)

    is_answered()
