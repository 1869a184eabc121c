"""The key of a request from its first bytes: equal for requests that have their first image, or their beginning, in common.

A router in front of the replicas looks at 32 KB of a body and must answer in a fraction of a millisecond. The first image is
known by its first kilobytes in base64, a conversation without one by its first user's turn, and nothing else is parsed. A
tenant is not in the key, because HAProxy tells the router no API key; replicas keep tenants apart all the same.
"""

import hashlib
import json
import re

_IMAGE = re.compile(rb";base64,([A-Za-z0-9+/=_-]+)")
_LEAST, _MOST = 64, 16 * 1024  # characters of an image's base64
_LIST = re.compile(r'"(?:messages|input)"\s*:\s*\[\s*')
_TEXT = re.compile(r'"(?:prompt|input)"\s*:\s*(?=")')
_SYSTEM = ("system", "developer")
_SPACE = re.compile(r"[\s,]*")
HEAD_BYTES = 32 * 1024
_DECODER = json.JSONDecoder()


def key_of_body(head: bytes) -> bytes:
    """`head`: a body of JSON, or as much of its beginning as is there."""
    head = head[:HEAD_BYTES]
    image = _IMAGE.search(head)
    if image is not None and len(image[1]) >= _LEAST:
        whole = image.end() < len(head)  # else it goes on past the head
        return _digest(b"media", image[1][:_MOST] if whole else _stable(image[1]))
    text = head.decode("utf-8", errors="ignore")
    begun = _LIST.search(text)
    if begun is not None:
        return _digest(b"turn", _first_turn(text, begun.end()).encode())
    prompt = _TEXT.search(text)
    if prompt is not None:
        return _digest(b"text", _string(text, prompt.end()).encode())
    return _digest(b"body", head)


def _stable(begun: bytes) -> bytes:
    """Of an image whose end is not there: a length that does not change with what stands before it, but in large steps."""
    return begun[: min(_MOST, 1 << (len(begun).bit_length() - 1))]


def _first_turn(text: str, start: int) -> str:
    """All up to the end of the first message that is not the system's, as far as it is there."""
    position = start
    while True:
        try:
            message, position = _DECODER.raw_decode(text, _SPACE.match(text, position).end())  # type: ignore[union-attr]
        except (ValueError, RecursionError):  # the list's end, or that of what is there, or no JSON
            return text[start:] if position == start else text[start:position]
        if not isinstance(message, dict) or message.get("role") not in _SYSTEM:
            return text[start:position]


def _string(text: str, start: int) -> str:
    try:
        found, _ = _DECODER.raw_decode(text, start)
    except ValueError:
        return text[start:]
    return str(found)


def _digest(kind: bytes, data: bytes) -> bytes:
    return hashlib.sha256(kind + b"\0" + data).digest()
