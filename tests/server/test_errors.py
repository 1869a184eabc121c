"""What a client gets wrong: status, type, message, in OpenAI's shape, whatever the mistake."""

import json
import socket
from typing import Any

import httpx
import openai
import pytest

from server.media import data_url, image_part, png, text_part
from server.running import ADMIN, MODEL, RunningServer, wait_for
from server.wire import exchange, head

ASK = [{"role": "user", "content": "Hello"}]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error in a response, whose shape and status are checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"].endswith((".", "?")), body["error"]["message"]
    return dict(body["error"])


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ([], "tempreature"),
        ([], "best_of"),
        ([], "audio"),
        ([], "truncate_prompt_tokens"),
        ([], "prompt_logprobs"),
        (["messages", 0], "weight"),
        (["stream_options"], "usage"),
        (["response_format"], "shape"),
        (["response_format", "json_schema"], "form"),
        (["tools", 0], "kind"),
        (["tools", 0, "function"], "body"),
        (["mm_processor_kwargs"], "size"),
        (["messages", 0, "content", 0], "alt"),
        (["messages", 0, "content", 0, "image_url"], "crop"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else value,
)
def test_unknown_fields_are_refused_by_name(server: RunningServer, path: list[Any], field: str) -> None:
    """At any depth. Red when a field is accepted and ignored."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": [image_part(1), text_part("x")]}],
        "stream_options": {},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "mm_processor_kwargs": {},
    }
    place: Any = body
    for step in path:
        place = place[step]
    place[field] = "something"
    error = error_of(server.post(**body), 400)
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in [*path, field]).lstrip(".")
    message = f"Field '{where}' is not supported."
    assert error["message"].startswith(message)
    assert (error["message"] != message) == (field in ("best_of", "audio", "truncate_prompt_tokens", "prompt_logprobs", "size"))
    assert (error["param"], error["type"], error["code"]) == (where, "invalid_request_error", "unsupported_field")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "Field 'max_tokens' is wrong: expected 'int' >= 1."),
        ({"max_tokens": "5"}, "Field 'max_tokens' is wrong: expected 'int | null', got 'str'."),
        ({"max_tokens": 10**6}, "max_tokens is 1000000, but at most 32768 are allowed (max_output_tokens)."),
        (
            {"reasoning_effort": "low"},
            "reasoning_effort is 'low', which the model's chat template does not know; leave it out.",
        ),
        ({"temperature": -1}, "temperature is -1.0, but must be at least 0 and finite."),
        ({"top_p": 2}, "top_p is 2.0, but must be above 0 and at most 1."),
        ({"n": 1000}, "n is 1000, but at most 64 are allowed (max_n)."),
        ({"top_logprobs": 3}, "top_logprobs is 3, but must be 0 unless logprobs is set."),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21, but must be between 0 and 20."),
        ({"logit_bias": {"a": 1}}, "logit_bias must map token ids to numbers."),
        ({"seed": 10**30}, f"seed is {10**30}, but must be a 64-bit integer."),
        ({"stop": ["a"] * 100}, "stop has 100 strings, but at most 64 are allowed."),
        ({"stop": [""]}, "stop has a string of 0 characters; it may have 1 to 1024."),
        ({"tool_choice": "required"}, "tool_choice asks for a call, but there are no tools."),
        ({"modalities": ["audio"]}, "Field 'modalities[0]' is 'audio', which is not supported."),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs cannot set 'messages'."),
        ({"response_format": {"type": "regex", "regex": "("}}, None),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}}, None),
    ],
    ids=str,
)
def test_wrong_values_are_named(server: RunningServer, fields: dict[str, Any], message: str | None) -> None:
    error = error_of(server.post(messages=ASK, **fields), 400)
    assert message is None or error["message"] == message
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "part_of_message"),
    [
        ([], "Field 'messages' is wrong"),
        ("Hello", "Field 'messages' is wrong: expected 'array', got 'str'."),
        ([{"role": "king", "content": "x"}], "Field 'messages[0].role' is 'king', which is not supported."),
        ([{"role": "user"}], "Field 'messages[0].content' is missing."),
        ([{"content": "x"}], "Field 'messages[0].role' is missing."),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "Field 'messages[0].content[0].type' is 'input_audio'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "no URL in 'image_url.url' and no 'uuid'"),
        ([{"role": "user", "content": "<|image_pad|>"}], "cannot be written as text"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_messages_are_named(server: RunningServer, messages: Any, part_of_message: str) -> None:
    assert part_of_message in error_of(server.post(messages=messages), 400)["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"messages": NaN}'])
def test_what_is_not_a_json_object(server: RunningServer, body: bytes) -> None:
    error_of(server.http.post("/v1/chat/completions", content=body), 400)


def test_deeply_nested_json_is_refused_or_answered(server: RunningServer) -> None:
    """A field that is not looked at may be anything; nothing may crash on it."""
    nested = (
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "metadata": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    )
    assert server.http.post("/v1/chat/completions", content=nested).status_code in (200, 400)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "unknown_endpoint"),
        ("POST", "/v1/nothing", 404, "unknown_endpoint"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("POST", "/v1/embeddings", 404, "unsupported_endpoint"),
        ("GET", "/v1/models/absent", 404, "model_not_found"),
        ("POST", "/flush_cache", 401, "invalid_api_key"),
    ],
)
def test_wrong_places(server: RunningServer, method: str, path: str, status: int, code: str) -> None:
    assert error_of(server.http.request(method, path), status)["code"] == code


def test_a_model_that_is_not_served(server: RunningServer) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        server.chat(model="gpt-4o")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    assert "'gpt-4o'" in caught.value.body["message"]  # type: ignore[index]


def test_a_prompt_beyond_the_context_is_refused_with_both_counts(server: RunningServer) -> None:
    """Before anything is encoded: the image in it stays unknown."""
    before = server.stats()
    with pytest.raises(openai.BadRequestError) as caught:
        server.chat([image_part(900), text_part("word " * 9000)])
    message = caught.value.body["message"]  # type: ignore[index]
    assert caught.value.code == "context_length_exceeded" and "more than the limit of 4095" in message
    assert int(message.split("has ")[1].split(" tokens")[0]) > 4095
    assert server.stats()["items_decoded"] == before["items_decoded"]


BAD_MEDIA = {
    "not base64": "data:image/png;base64,?!",
    "not an image": data_url(b"hello, I am text"),
    "cut in the header": data_url(png(1)[:20]),
    "cut in the pixels": data_url(png(1, 256, 256)[:-300]),
    "local file": "file:///etc/passwd",
    "path": "/etc/passwd",
    "loopback": "http://127.0.0.1/x.png",
    "localhost": "http://localhost:80/x.png",
    "metadata service": "http://169.254.169.254/latest",
    "ftp": "ftp://example.com/x.png",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", BAD_MEDIA)
def test_bad_media_are_a_400_with_a_sentence(server: RunningServer, name: str, stream: bool) -> None:
    """Also where only decoding finds it, in the engine, and also for a stream, which has not begun by then."""
    part = {"type": "image_url", "image_url": {"url": BAD_MEDIA[name]}}
    response = server.post(messages=[{"role": "user", "content": [part, text_part("x")]}], stream=stream)
    assert "annot be" in error_of(response, 400)["message"]


def test_a_bad_image_harms_nobody_else(server: RunningServer) -> None:
    good = server.chat([image_part(1), text_part("What?")])
    before = server.until_idle()
    part = {"type": "image_url", "image_url": {"url": BAD_MEDIA["cut in the pixels"]}}
    for _ in range(3):
        error_of(server.post(messages=[{"role": "user", "content": [part, text_part("x")]}]), 400)
    assert server.until_idle()["embedding_bytes_used"] == before["embedding_bytes_used"]
    assert server.chat([image_part(1), text_part("What?")]).choices[0].message == good.choices[0].message


def test_sizes_outside_the_servers_limits(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": [image_part(1), text_part("x")]}]}
    error = error_of(server.post(**body, mm_processor_kwargs={"max_pixels": 10**9}), 400)
    assert error["param"] == "max_pixels" and "1000000000" in error["message"]
    error_of(server.post(**body, mm_processor_kwargs={"min_pixels": 200_000, "max_pixels": 100_000}), 400)


def test_uuids_name_images_seen_before(server: RunningServer) -> None:
    def ask(part: dict[str, Any]) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": [part, text_part("What does it say?")]}], "max_tokens": 4}
        return server.post(**body, temperature=0, return_timings=True)

    alone = {"type": "image_url", "image_url": None, "uuid": "mine"}
    unknown = error_of(ask(alone), 404)
    assert unknown["code"] == "media_not_found" and "'mine'" in unknown["message"]
    first, again = ask(image_part(901, uuid="mine")), ask(alone)
    assert first.json()["choices"] == again.json()["choices"]
    assert (first.json()["metadata"]["encoded_items"], again.json()["metadata"]["encoded_items"]) == (1, 0)
    flushed = server.http.post("/flush_cache", headers={"Authorization": f"Bearer {ADMIN}"})
    assert flushed.status_code == 200
    gone = error_of(ask(alone), 404)
    assert gone["code"] == "media_not_found" and "send it again" in gone["message"]
    assert ask(image_part(901, uuid="mine")).json()["metadata"]["encoded_items"] == 1


def test_what_is_not_http_is_answered_in_the_same_shape(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"hello\r\n\r\n")
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_endless_headers_are_cut(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        answer = b""
        try:
            for _ in range(200):
                connection.sendall(b"x-filler: " + b"a" * 4096 + b"\r\n")
            answer = connection.recv(4096)
        except OSError:
            return  # closed while we were still writing
    assert answer.startswith(b"HTTP/1.1 431")


def test_tokenize_and_detokenize(server: RunningServer) -> None:
    text = "The sign says ünïcode 日本"
    tokens = server.http.post("/tokenize", json={"model": MODEL, "prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == 4096
    assert server.http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": text}
    chat = server.http.post(
        "/tokenize", json={"messages": [{"role": "user", "content": [image_part(1), text_part("x")]}]}
    ).json()
    asked = server.post(messages=[{"role": "user", "content": [image_part(1), text_part("x")]}], max_tokens=1).json()
    assert chat["count"] == asked["usage"]["prompt_tokens"]
    error_of(server.http.post("/tokenize", json={"prompt": "a", "messages": ASK}), 400)
    error_of(server.http.post("/detokenize", json={"tokens": [-1]}), 400)


def test_small_endpoints(server: RunningServer) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/ready").json() == {"ready": True, "engine": "ready", "restarts": 0}
    import sightline

    assert server.http.get("/version").json() == {"version": sightline.__version__}
    described = server.http.get("/openapi.json").json()
    fields = described["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "tools", "mm_processor_kwargs", "stream_options"} <= set(fields)
    assert "/v1/chat/completions" in described["paths"]


def test_requests_are_logged_without_content(server: RunningServer) -> None:
    response = server.post(messages=[{"role": "user", "content": "a-secret-word"}], max_tokens=2, ignore_eos=True)
    name = response.headers["x-request-id"]
    assert name == response.json()["id"]
    line = wait_for(lambda: next((line for line in server.log if line["id"] == name), None), "a line in the log")
    assert (line["status"], line["route"], line["completion_tokens"]) == (200, "/v1/chat/completions", 2)
    assert line["e2e_ms"] > 0 and line["stages_ms"]["prefill"] > 0
    assert "a-secret-word" not in json.dumps(server.log) + server.errors


@pytest.mark.parametrize("name", ["self", "template_kwargs", "context", "range", "loop", "caller", "__class__", ""])
def test_template_options_may_have_any_name(server: RunningServer, name: str) -> None:
    """Red (a 500) when a client's names become keyword arguments of a function that has parameters of the same name."""
    response = server.post(messages=ASK, max_tokens=1, chat_template_kwargs={name: 1})
    assert response.status_code in (200, 400), response.text
    assert response.status_code == 200 or error_of(response, 400)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_a_content_length_of_thousands_of_digits(server: RunningServer, path: str) -> None:
    """Red (a 500, before any key is asked for) when Python is to read a number of more digits than it reads."""
    answer = exchange(server, head("Content-Length: " + "0" * 4299 + "12", path=path) + b'{"x": "1234"}'[:12])
    assert answer.status == 400 and answer.error()
