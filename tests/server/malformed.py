"""Good requests, damaged from a seed: in their bytes, their JSON, their HTTP, their media."""

import base64
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from media.mutants import damaged, good_images, good_videos
from server.media import data_url, png
from server.wire import CHAT, head, request

_IMAGE = {"type": "image_url", "image_url": {"url": data_url(png(1))}}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"x": {}}}}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "required": ["b"]}}}
_CALL = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}


def _user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"messages": [_user()], "max_tokens": 1, "system": "Be brief.", "stream": True, "top_k": 5}),
    ("/v1/responses", {"input": [{"role": "user", "content": "Hello"}], "max_output_tokens": 1, "stream": True}),
    (CHAT, {"model": "sightline-embedded", "messages": [_user(_IMAGE)], "max_tokens": 1, "temperature": 0.5, "seed": 3}),
    (CHAT, {"messages": [_user()], "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}, "n": 2}),
    (CHAT, {"messages": [_user(), _CALL, {"role": "tool", "content": "4"}], "max_tokens": 1, "tools": [_TOOL], "top_p": 0.9}),
    (CHAT, {"messages": [_user()], "max_tokens": 2, "response_format": _SCHEMA, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": [_user(_IMAGE)], "max_tokens": 1, "mm_processor_kwargs": {"max_pixels": 50_000}, "stop": ["x", "y"]}),
    ("/v1/completions", {"prompt": ["Hello", "you"], "max_tokens": 1, "logit_bias": {"5": -3}, "stop_token_ids": [7]}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 1, "presence_penalty": 0.5, "logprobs": 1, "top_k": 4}),
    ("/tokenize", {"messages": [_user(_IMAGE)], "return_token_strs": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
_ODD: list[Any] = [
    *(None, True, "", "x", "\u0000", "1e9", "💥" * 50, [], {}, [[]], [None], {"a": {}}),
    *(0, -1, 1.5, 2**31, 2**63, 2**64, -(2**70), 1e308),
]
_ODD_TEXT = [
    *("NaN", "-Infinity", "1e999", "9" * 400, "-0", "01", "0x10", "1.", "'x'", "undefined", "tru"),
    *('"\\ud800"', '"\\x"', "[" * 3000, '{"a":' * 900),
]
_NO_TEXT = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x00", b"\xf4\x90\x80\x80", b"\n", b"\\u12", b"\\udc00\\ud800")
_METHODS = (b"post", b"PUT", b"DELETE", b"TRACE", b"PRI", b"GET", b"\x16\x03\x01", b"")
_PATHS = (b"*", b"/%00", b"/%ff%fe", b"/\xff", b"/../../etc/passwd", b"/" + b"a" * 20_000, b"", b"http://elsewhere/health")
_HOSTS = (b"", b"Host", b"Host:", b"Host: x\r\nHost: y", b"\x00: x", b"H\xf6st: x", b"Host: \x01")
_KEYS = (b"", b"Bearer", b"Bearer \xff\xfe", b"Basic eDp5", b"Bearer " + b"k" * 9000)


@dataclass(frozen=True)
class Damaged:
    kind: str
    data: bytes  # what goes over the wire
    incomplete: bool = False  # it announces more than it sends: the client says goodbye, and an answer is not due


def damaged_requests(count: int, seed: int = 0) -> Iterator[Damaged]:
    """All kinds in turn; every other one is a damaged image or video."""
    chance = random.Random(seed)
    kinds: list[Callable[[random.Random], Damaged]] = [
        _bytes, _cut, _types, _numbers, _nested, _twice, _no_text, _content_type, _lengths, _chunks, _heads, _data_urls,
    ]  # fmt: skip
    media = _media(chance)
    for number in range(count):
        yield next(media) if number % 2 else kinds[number // 2 % len(kinds)](chance)


def _good(chance: random.Random) -> tuple[str, dict[str, Any]]:
    path, body = chance.choice(GOOD)
    return path, json.loads(json.dumps(body))


def _bytes(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    data = bytearray(json.dumps(body).encode())
    for _ in range(chance.choice((1, 2, 8))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return Damaged("bytes", request(bytes(data), path=path))


def _cut(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    data = json.dumps(body).encode()
    start = chance.choice((0, 0, chance.randrange(len(data))))
    return Damaged("cut", request(data[start : start + chance.randrange(len(data))], path=path))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a body with every key or index in it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _types(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    for _ in range(chance.choice((1, 1, 3))):
        container, key = chance.choice(_places(body))
        container[key] = chance.choice(_ODD)
    return Damaged("types", request(body, path=path))


def _marked(chance: random.Random) -> tuple[str, str]:
    """A body as text, with a mark in the place of some value."""
    path, body = _good(chance)
    container, key = chance.choice(_places(body))
    container[key] = "MARK"
    return path, json.dumps(body)


def _numbers(chance: random.Random) -> Damaged:
    path, text = _marked(chance)
    return Damaged("numbers", request(text.replace('"MARK"', chance.choice(_ODD_TEXT)).encode(), path=path))


def _nested(chance: random.Random) -> Damaged:
    path, text = _marked(chance)
    depth = chance.choice((50, 500, 5000, 100_000))
    left, right = chance.choice((("[", "]"), ('{"a":', "}"), ('[{"b":', "}]")))
    return Damaged("nested", request(text.replace('"MARK"', f"{left * depth}1{right * depth}").encode(), path=path))


def _twice(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    key = chance.choice(list(body))
    text = json.dumps(body)[:-1] + f", {json.dumps(key)}: {json.dumps(chance.choice([body[key], *_ODD]))}}}"
    return Damaged("twice", request(text.encode(), path=path))


def _no_text(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    data = json.dumps(body).encode()
    at = data.index(b'"', chance.randrange(data.rindex(b'"'))) + 1
    odd = chance.choice(_NO_TEXT)
    return Damaged("no text", request(data[:at] + odd + data[at:], path=path))


def _content_type(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    text = json.dumps(body)
    kind, data = chance.choice(
        (
            ("text/plain", text.encode()),
            ("application/x-www-form-urlencoded", b"messages=x&max_tokens=1"),
            ("multipart/form-data; boundary=x", f"--x\r\nContent-Disposition: form-data\r\n\r\n{text}\r\n--x--".encode()),
            ("application/json; charset=utf-16", text.encode("utf-16")),
            ("application/json", b"\xef\xbb\xbf" + text.encode()),
            ("image/png", png(1)),
            ("application/json\r\nContent-Encoding: gzip", text.encode()),
            ("", text.encode()),
        )
    )
    return Damaged("content type", request(data, f"Content-Type: {kind}", path=path))


def _lengths(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    data = json.dumps(body).encode()
    right = len(data)
    wrong = (str(right + 1), str(right + 5000), str(right - 1), "0", "-1", "1e3", "", "0x10", "9" * 30, f"{right}, 5")
    length = chance.choice(wrong)
    more = length.isdecimal() and right < int(length) < right + 10_000
    return Damaged("lengths", head(f"Content-Length: {length}", path=path) + data, incomplete=more)


def _chunks(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    data = json.dumps(body).encode()
    size = b"%x" % len(data)
    whole = size + b"\r\n" + data + b"\r\n0\r\n\r\n"
    coded, encoding, incomplete = chance.choice(
        (
            (whole, "chunked", False),
            (size + b";name=value\r\n" + data + b"\r\n0\r\nTrailer: x\r\n\r\n", "chunked", False),
            (b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n", "chunked", False),
            (b"zz\r\n" + data, "chunked", False),
            (b"-5\r\n" + data, "chunked", False),
            (b"f" * 20 + b"\r\n" + data, "chunked", False),
            (b"5\r\n" + data + b"\r\n0\r\n\r\n", "chunked", False),
            (size + b"\r\n" + data + b"0\r\n\r\n", "chunked", False),
            (b"0\r\n\r\n", "chunked", False),
            (b"ffffffff\r\n" + data, "chunked", True),
            (whole, "gzip", True),
            (whole, "gzip, chunked", False),
            (whole, "chunked, chunked", False),
            (whole, f"chunked\r\nContent-Length: {len(data)}", False),
        )
    )
    return Damaged("chunks", head(f"Transfer-Encoding: {encoding}", path=path) + coded, incomplete)


def _heads(chance: random.Random) -> Damaged:
    path, body = _good(chance)
    good = request(body, "X-Word: value", path=path)
    place = path.encode()
    many = b"\r\n".join(b"X-%d: %s" % (number, b"y" * 50) for number in range(chance.choice((100, 2000))))
    changes = (
        (b"HTTP/1.1", chance.choice((b"HTTP/1.0", b"HTTP/3.0", b"HTTP/9", b"HTTQ/1.1", b"")), 1),
        (b"POST", chance.choice(_METHODS), 1),
        (place, chance.choice((*_PATHS, place + b"/", b"//" + place, place + b"%00", place + b"?" + b"x=1&" * 500)), 1),
        (b"Host: localhost", chance.choice(_HOSTS), 1),
        (b"X-Word: value", many, 1),
        (b"X-Word: value", b"Authorization: " + chance.choice(_KEYS), 1),
        (b"X-Word: value", b"X-Word: value\r\n folded", 1),
        (b"\r\n", b"\n", -1),
    )
    old, new, times = chance.choice(changes)
    # A GET has no need to read the body; what follows its head is taken for another request, which is none.
    return Damaged("heads", good.replace(old, new, times) + b"\r\n\r\n", incomplete=new in (b"PRI", b"\n"))


def _asking(kind: str, url: str) -> bytes:
    part = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
    return request({"messages": [_user(part)], "max_tokens": 1})


def _data_urls(chance: random.Random) -> Damaged:
    text = base64.b64encode(png(chance.randrange(5))).decode()
    at = chance.randrange(len(text))
    urls = (
        f"data:image/png;base64,{text[:at]}",
        f"data:image/png;base64,{text[:at]}!{text[at:]}",
        f"data:image/png;base64,{text[:at]} \n{text[at:]}",
        f"data:image/png;base64{text}",
        f"data:image/png,{text}",
        f"data:;base64,{text}",
        f"data:video/mp4;base64,{text}",
        f"DATA:image/png;BASE64,{text}",
        f"data:image/png;base64,{text[::-1]}",
        "data:",
        "data:,",
        f"http://127.0.0.1:1/{text[:50]}",
        "http://[::1",
        "http://",
        "ftp://x/y",
        "file:///etc/passwd",
        "/etc/passwd",
        "\u0000",
        "http://\ud800".encode("utf-8", "replace").decode(),
    )
    return Damaged("data URLs", _asking(chance.choice(("image", "image", "video")), chance.choice(urls)))


def _media(chance: random.Random) -> Iterator[Damaged]:
    images, videos = good_images(""), good_videos()
    while True:
        for data in images:
            yield Damaged("images", _asking("image", data_url(damaged(data, chance))))
        yield Damaged("videos", _asking("video", data_url(damaged(chance.choice(videos), chance), "video/mp4")))
