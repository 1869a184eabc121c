"""data: URLs: what is taken, what is refused, what a large one costs."""

import base64
import tracemalloc

import pybase64
import pytest

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.data_url import decode_data_url
from sightline.media.limits import ByteAllowance, RequestBudget

DATA = bytes(range(256)) * 40 + b"!"  # its base64 ends with ==


def decoded(text: str, limits: MediaConfig | None = None, budget: RequestBudget | None = None) -> bytes:
    return decode_data_url(text, ByteAllowance("image", "X", limits or MediaConfig(), budget))


def refused(text: str, sentence: str, limits: MediaConfig | None = None, budget: RequestBudget | None = None) -> None:
    with pytest.raises(MediaError) as caught:
        decoded(text, limits, budget)
    assert str(caught.value) == sentence


def as_url(data: bytes, about: str = "data:image/jpeg;base64") -> str:
    return f"{about},{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(
    "about", ["data:image/jpeg;base64", "data:;base64", "DATA:image/png;name=a.png;Base64", "data:;base64 "]
)
def test_what_stands_before_the_comma(about: str) -> None:
    assert decoded(as_url(DATA, about)) == DATA


# Red if white space is refused: mail programs and shells wrap lines.
def test_white_space() -> None:
    text = base64.encodebytes(DATA).decode()
    assert text.count("\n") > 10
    for payload in (text, text.replace("\n", "\r\n\t "), " " + text, "\n".join(text)):
        assert decoded(f"data:image/jpeg;base64,{payload}") == DATA


# Red if padding must be there: libraries in JavaScript and Go leave it out.
@pytest.mark.parametrize("length", range(1, 9))
def test_missing_padding(length: int) -> None:
    data = DATA[:length]
    assert decoded(as_url(data).rstrip("=")) == data
    assert decoded(as_url(data)) == data


# Red if garbage is skipped silently, as base64.b64decode does by default.
@pytest.mark.parametrize("garbage", ["!", "%3D", "é", "====", "-_", "\0", "\ud800", "A=", "=", "==="])
def test_garbage(garbage: str) -> None:
    sentence = "Image X cannot be read: its data is not base64."
    refused(as_url(DATA) + garbage, sentence)
    refused(as_url(DATA).replace(",", f",{garbage}", 1), sentence)
    refused(as_url(DATA[:-1]) + "A", sentence)  # five characters are no group of four, whatever is added


@pytest.mark.parametrize(
    "url", ["data:image/png", "data:image/png,abc", "data:,", "data:image/png;base64", "data:" + "x" * 500 + ";base64,AAAA"]
)
def test_malformed(url: str) -> None:
    refused(url, "Image X cannot be read: a data URL must have the form data:<type>;base64,<data>.")


# Red if the limit is off by one, or is not the decoded size.
def test_limit() -> None:
    limits = MediaConfig(max_image_mb=1)
    assert len(decoded(as_url(bytes(1_000_000)), limits)) == 1_000_000
    assert len(decoded("data:;base64," + base64.encodebytes(bytes(1_000_000)).decode(), limits)) == 1_000_000
    refused(as_url(bytes(1_000_001)), "Image X has 1.0 MB, more than the 1 MB allowed (--max-image-mb).", limits)
    refused(as_url(bytes(9_000_000)), "Image X has 9.0 MB, more than the 1 MB allowed (--max-image-mb).", limits)


def test_limit_of_the_request() -> None:
    limits = MediaConfig(max_request_media_mb=1)
    budget = RequestBudget(limits)
    decoded(as_url(bytes(600_000)), limits, budget)
    together = "The images and videos of the request have more than the 1 MB allowed together (--max-request-media-mb)."
    refused(as_url(bytes(600_000)), together, limits, budget)
    assert len(decoded(as_url(bytes(400_000)), limits, budget)) == 400_000


# Red if a URL beyond the limit is copied or decoded before it is refused.
def test_a_large_url_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "data:image/png;base64," + "A" * 300_000_000

    def decode(*_: object, **__: object) -> bytes:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(pybase64, "b64decode", decode)
    tracemalloc.start()
    refused(text, "Image X has 225.0 MB, more than the 64 MB allowed (--max-image-mb).")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
