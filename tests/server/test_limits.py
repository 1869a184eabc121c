"""Keys and limits of a server that was given some, by a config file."""

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.media import image_part, png, text_part
from server.running import ADMIN, MODEL, RunningServer, running, wait_for
from server.test_errors import error_of

CONFIG = """
api-key: [first-key, second-key]
max_request_mb: 0.2
max_inflight_mb: 0.5
queue-timeout-s: 1
body-timeout-s: 4
header-timeout-s: 3
request-timeout-s: 5
default-max-tokens: 7
allowed-origins: ["https://pages.example"]
limit-mm-per-prompt: {image: 2}
enable-response-timings: true
log-content: true
accept-any-model-name: true
"""
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "seen.png").write_bytes(png(1))
    (folder / "way-out.png").symlink_to("/etc/passwd")
    return folder


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("strict")
    file = folder / "config.yaml"
    file.write_text(CONFIG)
    flags = ["--config", str(file), "--allowed-local-media-path", str(pictures), "--max-n", "3"]
    with running(folder, *flags, key="first-key") as made:
        yield made


def padded(size: int) -> bytes:
    """A good body with so many bytes."""
    body = json.dumps(HELLO)
    return (body + " " * (size - len(body))).encode()


@pytest.mark.parametrize("key", [None, "wrong", "first-key2", "first-ke", "Bearer", "\u00fcber"])
def test_requests_without_a_valid_key_are_refused(strict: RunningServer, key: str | None) -> None:
    headers = {"Authorization": f"Bearer {key}".encode()} if key is not None else {}
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("POST", "/tokenize"),
        ("POST", "/v1/completions"),
    ):
        error = error_of(httpx.request(method, strict.url + path, headers=headers, json=HELLO), 401)  # type: ignore[arg-type]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize("key", ["first-key", "second-key", ADMIN])
def test_every_valid_key_is_let_in(strict: RunningServer, key: str) -> None:
    client = openai.OpenAI(base_url=f"{strict.url}/v1", api_key=key, max_retries=0)
    assert client.models.list().data[0].id == MODEL
    assert (
        httpx.post(f"{strict.url}/v1/chat/completions", json=HELLO, headers={"Authorization": f"bearer {key}"}).status_code
        == 200
    )


def test_the_client_sees_an_authentication_error(strict: RunningServer) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{strict.url}/v1", api_key="wrong", max_retries=0).models.list()


@pytest.mark.parametrize("path", ["/health", "/ready", "/version"])
def test_probes_need_no_key(strict: RunningServer, path: str) -> None:
    assert httpx.get(strict.url + path).status_code == 200


def test_admin_endpoints_need_the_admin_key(strict: RunningServer) -> None:
    for method, path in (("POST", "/flush_cache"), ("GET", "/stats")):
        error_of(strict.http.request(method, path), 401)
        assert httpx.request(method, strict.url + path, headers={"Authorization": f"Bearer {ADMIN}"}).status_code == 200


def test_names_of_one_caller_are_unknown_to_another(strict: RunningServer) -> None:
    """Red when the names are shared: one customer could see what another has sent."""
    alone = {"type": "image_url", "image_url": None, "uuid": "mine"}
    ask: Any = {"max_tokens": 2, "messages": [{"role": "user", "content": [image_part(5, uuid="mine"), text_part("x")]}]}
    assert strict.post(**ask).status_code == 200
    ask["messages"][0]["content"][0] = alone
    assert strict.post(**ask).status_code == 200
    other = httpx.post(f"{strict.url}/v1/chat/completions", json=ask, headers={"Authorization": "Bearer second-key"})
    assert error_of(other, 404)["code"] == "media_not_found"


def test_large_bodies_are_refused_by_their_length_before_the_key_is_looked_at(strict: RunningServer) -> None:
    response = httpx.post(f"{strict.url}/v1/chat/completions", content=padded(300_000))
    assert error_of(response, 413)["code"] == "request_too_large"
    assert strict.http.post("/v1/chat/completions", content=padded(190_000)).status_code == 200


def test_large_bodies_are_refused_while_they_come_in(strict: RunningServer) -> None:
    """Chunked, so that no header tells their length. The rest is not waited for."""

    def parts() -> Iterator[bytes]:
        yield padded(150_000)
        for _ in range(40):
            yield b" " * 10_000

    try:
        response = strict.http.post("/v1/chat/completions", content=parts())
    except httpx.TransportError:
        return  # closed while the client was still writing
    error_of(response, 413)


def test_a_body_that_trickles_in_is_given_up(strict: RunningServer) -> None:
    """Slow loris. Red when it may hold a connection for as long as it likes."""
    with socket.create_connection(("127.0.0.1", strict.port), timeout=60) as client:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first-key\r\nContent-Length: 100\r\n\r\n{"
        )
        client.sendall(head.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_headers_that_trickle_in_are_given_up(strict: RunningServer) -> None:
    begins = (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: ")
    clients = [socket.create_connection(("127.0.0.1", strict.port), timeout=60) for _ in begins]
    for client, begin in zip(clients, begins, strict=True):
        client.sendall(begin)
    for client in clients:
        with client:
            assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_bytes_in_flight_are_bounded(strict: RunningServer) -> None:
    """Four bodies of 150 kB do not fit into 500 kB at once: one waits a second, unread, and gets 429 and when to come back; the
    others are answered."""
    body = padded(150_000)
    fields = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first-key\r\nContent-Length: {len(body)}\r\n"
    )
    head = f"{fields}Connection: close\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        *holders, other = [
            stack.enter_context(socket.create_connection(("127.0.0.1", strict.port), timeout=60)) for _ in range(4)
        ]
        for client in holders:
            client.sendall(head + body[:-1])
        wait_for(lambda: True if strict.stats()["inflight_bytes"] >= 449_000 else None, "the bodies to arrive")
        other.sendall(head)
        refused = other.makefile("rb").read()
        for client in holders:
            client.sendall(body[-1:])
        answers = [client.makefile("rb").read() for client in holders]
    assert [answer.split(b" ")[1] for answer in answers] == [b"200"] * 3
    assert refused.startswith(b"HTTP/1.1 429") and b"retry-after: 1" in refused.lower() and b'"rate_limit_error"' in refused
    assert b"queue_timeout_s" in refused
    strict.until_idle()


def test_requests_that_take_too_long_are_ended(strict: RunningServer) -> None:
    """An error with a status of its own, or the last event of a stream."""
    body = {**HELLO, "max_tokens": 4000, "ignore_eos": True, "n": 3}
    with ThreadPoolExecutor(2) as pool:
        whole, stream = pool.map(lambda streamed: strict.post(**body, stream=streamed), [False, True])
    events = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
    assert stream.status_code == 200 and "[DONE]" not in events
    for error in (error_of(whole, 504), json.loads(events[-1])["error"]):
        assert error["code"] == "timeout" and "5 s" in error["message"]
    strict.until_idle()


def test_any_name_of_the_model_where_the_server_allows_it(strict: RunningServer) -> None:
    """Red when --accept-any-model-name does not reach the check; without it such a name is 404 (test_errors.py)."""
    assert strict.post(**HELLO, model="gpt-4o").json()["model"] == "gpt-4o"


def test_answers_have_a_default_length(strict: RunningServer) -> None:
    answer = strict.post(messages=HELLO["messages"], ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["metadata"]["timings_ms"]["e2e"] > 0, "enable-response-timings"


def test_images_per_request_are_limited(strict: RunningServer) -> None:
    content = [image_part(number) for number in range(3)]
    error = error_of(strict.post(messages=[{"role": "user", "content": content}]), 400)
    assert error["message"] == "The request has 3 images, more than the 2 allowed (--limit-mm-per-prompt)."


def test_local_files_come_from_the_folder_alone(strict: RunningServer, pictures: Path) -> None:
    def ask(url: str) -> httpx.Response:
        part = {"type": "image_url", "image_url": {"url": url}}
        return strict.post(messages=[{"role": "user", "content": [part, text_part("x")]}], max_tokens=1)

    assert ask(f"file://{pictures}/seen.png").status_code == 200
    for url in (f"file://{pictures}/way-out.png", f"file://{pictures}/../x.png", "file:///etc/passwd"):
        assert "--allowed-local-media-path" in error_of(ask(url), 400)["message"]


def test_pages_of_allowed_origins_may_call(strict: RunningServer) -> None:
    def preflight(origin: str) -> httpx.Response:
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        return strict.http.options("/v1/chat/completions", headers=headers)

    assert preflight("https://pages.example").headers["access-control-allow-origin"] == "https://pages.example"
    assert "access-control-allow-origin" not in preflight("https://elsewhere.example").headers


def test_content_is_logged_if_asked_for(strict: RunningServer) -> None:
    response = strict.post(messages=[{"role": "user", "content": "a-word-to-find"}], max_tokens=2)
    name = response.json()["id"]
    line = wait_for(lambda: next((line for line in strict.log if line["id"] == name), None), "a line in the log")
    assert line["request"]["messages"][0]["content"] == "a-word-to-find"
    assert line["answers"] == [response.json()["choices"][0]["message"]["content"]]
