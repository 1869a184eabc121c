"""Requests as bytes, ready before the clock starts. A picture that many requests show is in memory once."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pybase64

_MARK = uuid.uuid4().hex  # stands for a medium while a body is written; no text of a request has it


class Medium:
    """A picture or a clip as a data URL. No dataclass: msgspec would write it as an object."""

    def __init__(self, url: bytes) -> None:
        self.url = url

    @classmethod
    def of(cls, data: bytes, kind: str) -> "Medium":
        return cls(f"data:{kind};base64,".encode() + pybase64.b64encode(data))


@dataclass(frozen=True)
class RequestSample:
    """One request of a dataset: messages whose URLs may be a Medium, the most tokens to answer, its own fields of the body."""

    messages: list[dict[str, Any]]
    output_len: int
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestOptions:
    """What all requests of a run share."""

    model: str
    stream: bool = True
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def image_part(medium: Medium | str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": medium}}


def video_part(medium: Medium | str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": medium}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def request_body(sample: RequestSample, options: RequestOptions) -> tuple[bytes, ...]:
    """The body in pieces to be sent one after the other."""
    body: dict[str, Any] = {
        "model": options.model,
        "messages": sample.messages,
        "max_completion_tokens": sample.output_len,
        "temperature": 0.0,
        "stream": options.stream,
    }
    if options.stream:
        body["stream_options"] = {"include_usage": True}
    if options.ignore_eos:
        body["ignore_eos"] = True
    return pieces_of({**body, **options.extra_body, **sample.extra_body})


def pieces_of(body: Mapping[str, Any]) -> tuple[bytes, ...]:
    media: list[bytes] = []

    def mark(value: Any) -> str:
        if not isinstance(value, Medium):
            raise TypeError(f"{type(value).__name__} in a request")
        media.append(value.url)
        return _MARK

    between = msgspec.json.encode(body, enc_hook=mark).split(_MARK.encode())
    pieces = [between[0]]
    for medium, text in zip(media, between[1:], strict=True):
        pieces += [medium, text]
    return tuple(pieces)
