"""The key that a router knows a request by, from its first 32 KB."""

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sightline.ray.affinity import HEAD_BYTES, key_of_body

ROOM = 2048  # that headers may take of what HAProxy keeps


def body(*messages: tuple[str, Any], **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in messages], **fields}).encode()


def picture(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def key(whole: bytes, headers: int = 600) -> bytes:
    return key_of_body(whole[: HEAD_BYTES - headers])


SMALL, LARGE, OTHER = (bytes([seed, 1, 2, 3]) * size for seed, size in ((1, 500), (2, 500_000), (3, 500_000)))


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@given(st.text(max_size=300), st.sampled_from([SMALL, LARGE]), st.integers(0, ROOM))
def test_an_image_is_its_key_whatever_is_asked(words: str, data: bytes, headers: int) -> None:
    """Before it or behind it, in a longer conversation, with other fields and headers. Red when the same image moves."""
    expected = key(body(("user", [picture(data), text("What is it?")])))
    assert key(body(("user", [text(words), picture(data)]), max_tokens=3), headers) == expected
    rounds = (("user", [picture(data), text("What is it?")]), ("assistant", words), ("user", "And then?"))
    assert key(body(("system", words), *rounds), headers) == expected


def test_other_images_have_other_keys() -> None:
    assert len({key(body(("user", [picture(data)]))) for data in (SMALL, LARGE, OTHER)}) == 3


def test_the_first_image_counts() -> None:
    assert key(body(("user", [picture(SMALL), picture(OTHER)]))) == key(body(("user", [picture(SMALL), picture(LARGE)])))


def test_the_rounds_of_a_conversation_have_one_key() -> None:
    first = [("system", "Be short."), ("user", "Hello")]
    expected = key(body(*first, temperature=0))
    later = [*first, ("assistant", "Hi." * 20_000), ("user", "And now?")]
    assert key(body(*later, stream=True)) == expected
    assert key(body(("system", "Be long."), ("user", "Hello"))) != expected
    assert key(body(("system", "Be short."), ("user", "Good day"))) != expected


def test_images_by_url_are_known_by_it() -> None:
    def asked(url: str) -> bytes:
        return body(("user", [{"type": "image_url", "image_url": {"url": url}}, text("What?")]))

    assert key(asked("https://a.example/1.png")) != key(asked("https://a.example/2.png"))


def test_other_endpoints() -> None:
    def of(**fields: Any) -> bytes:
        return key(json.dumps(fields).encode())

    assert of(prompt="Once", max_tokens=1) == of(max_tokens=2, prompt="Once") != of(prompt="Twice")
    assert of(input="Once", model="a") == of(input="Once", model="b")
    item = {"role": "user", "content": "Hello"}
    assert of(input=[item]) == of(input=[item, {"role": "assistant", "content": "Hi."}], stream=True)


@given(st.binary(max_size=200))
def test_any_bytes_have_a_key(data: bytes) -> None:
    """A request that is no JSON is refused by the replica, not by the router."""
    assert len(key_of_body(data)) == 32
    assert len(key_of_body(b'{"messages": [' + data)) == 32


def test_deep_nesting_has_a_key() -> None:
    assert len(key_of_body(b'{"messages": [' + b"[" * 30_000)) == 32
