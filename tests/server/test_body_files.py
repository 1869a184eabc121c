"""Data URLs that are taken out of a body before it is parsed: nothing but the time may show it."""

import base64
import json
import random
from typing import Any

import msgspec
import pytest

from server.media import data_url, png
from server.running import RunningServer
from sightline.config import MediaConfig
from sightline.media.data_url import EmbeddedFile, decode_data_url
from sightline.media.limits import ByteAllowance
from sightline.server.body_files import parse_with_files
from sightline.server.chat import ChatEndpoint
from sightline.server.errors import ApiError
from sightline.server.parse import decoder_of, parse

DECODER = decoder_of(ChatEndpoint.body, lenient=False)
DATA = [random.Random(seed).randbytes(3000 + 1000 * seed) for seed in range(4)]
URLS = [data_url(data) for data in DATA]


def picture(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}], **fields}


def outcome(body: bytes) -> Any:
    """What the plain parser makes of it."""
    try:
        return msgspec.to_builtins(parse(body, DECODER))
    except ApiError as error:
        return error.message


def outcome_with_files(body: bytes) -> tuple[Any, int]:
    """The same with files taken out, and put back into what was made of it; how many there were."""
    try:
        parsed, files = parse_with_files(body, DECODER, ChatEndpoint().media_urls)
    except ApiError as error:
        return error.message, 0
    return put_back(msgspec.to_builtins(parsed), files), len(files)


def put_back(value: Any, named: Any) -> Any:
    if isinstance(value, dict):
        return {name: put_back(item, named) for name, item in value.items()}
    if isinstance(value, list):
        return [put_back(item, named) for item in value]
    if isinstance(value, str) and value in named:
        file: EmbeddedFile = named[value]
        url = file.start + base64.b64encode(file.data).decode()
        assert file.characters == len(url)
        return url
    return value


@pytest.mark.parametrize("indent", [None, 2])
def test_what_is_taken_out_is_what_stood_there(indent: int | None) -> None:
    parts = [picture(url) for url in URLS] + [{"type": "image_url", "image_url": URLS[0]}]
    parts.append({"type": "video_url", "video_url": {"url": URLS[1]}})
    body = json.dumps(chat(*parts, max_tokens=3), indent=indent).encode()
    assert outcome_with_files(body) == (outcome(body), len(parts))


LONG = URLS[0]
ELSEWHERE = {
    "in a text": chat({"type": "text", "text": LONG}),
    "in a text that looks like a field": chat({"type": "text", "text": f'"url":"{LONG}" and "url": "{LONG}"'}),
    "in a tool": chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"url": LONG}}}]),
    "in a tool, and in a picture": chat(
        picture(LONG), tools=[{"type": "function", "function": {"name": "f", "parameters": {"url": LONG}}}]
    ),
    "for the template": chat(picture(LONG), chat_template_kwargs={"url": LONG}),
    "in a field that is not offered": chat(picture(LONG), url=LONG),
    "too short": chat(picture("data:image/png;base64,QUJD")),
    "not base64": chat(picture(LONG[:-8] + "!" + LONG[-7:])),
    "wrapped": chat(picture(LONG[:2000] + "\n" + LONG[2000:])),
    "without padding": chat(picture(data_url(DATA[0][:1000]).rstrip("="))),
    "upper case": chat(picture("DATA" + LONG[4:])),
    "percent": chat(picture("data:text/plain," + "%20" * 1000)),
    "no text": chat(picture("data:image/png;base64," + "ä" * 2000)),
    "named like ours": chat(picture("file-0-00000000000000000000000000000000")),
}


@pytest.mark.parametrize("why", ELSEWHERE)
@pytest.mark.parametrize("ascii", [True, False])
def test_what_is_not_plain_is_left_to_the_parser(why: str, ascii: bool) -> None:
    body = json.dumps(ELSEWHERE[why], ensure_ascii=ascii).encode()
    assert outcome_with_files(body) == (outcome(body), 0)


WITH_URL = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{%s}}]}]'
WRITTEN = {
    "twice, the last one counts": WITH_URL % b'"url":"%s","url":"x"' + b"}",
    "slashes with backslashes": WITH_URL % b'"url":"\\/%s"' + b"}",
    "no JSON": WITH_URL % b'"url":"%s"',
    "another name that ends so": WITH_URL % b'"x\\"url":"%s"' + b"}",
    "of a wrong type": WITH_URL % b'"url":"%s"' + b',"n":"x"}',
    "too many values": WITH_URL % b'"url":"%s"' + b',"chat_template_kwargs":{"x":[' + b"1," * 1_000_000 + b"1]}}",
    "a list of such": b'[{"url":"%s"},{"url":"%s"}]',
}


@pytest.mark.parametrize("why", WRITTEN)
def test_bodies_that_no_encoder_writes(why: str) -> None:
    body = WRITTEN[why].replace(b"%s", LONG.encode())
    assert outcome_with_files(body) == (outcome(body), 0)


@pytest.mark.parametrize("seed", range(150))
def test_damaged_bodies_are_judged_as_before(seed: int) -> None:
    chance = random.Random(seed)
    parts = [picture(data_url(DATA[0][: chance.randrange(500, 3000)])) for _ in range(3)]
    body = bytearray(
        json.dumps(chat(*parts, {"type": "text", "text": 'a "data:" \\ "url": "'}), indent=chance.choice((None, 1))).encode()
    )
    for _ in range(chance.choice((1, 1, 3))):
        place = chance.choice((chance.randrange(len(body)), body.find(b'"', chance.randrange(len(body)))))
        body[place : place + chance.choice((0, 1, 2))] = chance.choice(
            (b'"', b"\\", b"\\\\", b"\xff", b":", b"\x00", b" ", b'"url":"data:', b"", b'\\"')
        )
    found, _ = outcome_with_files(bytes(body))
    expected = outcome(bytes(body))
    if found != expected:  # a last digit whose unused bits are not zero decodes to the same bytes
        assert decoded(found) == decoded(expected)


def decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: decoded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if isinstance(value, str) and value.startswith("data:"):
        return decode_data_url(value, ByteAllowance("image", "x", MediaConfig()))
    return value


def test_pictures_in_all_forms_get_the_same_answer(sturdy: RunningServer) -> None:
    """Over HTTP: a plain data URL, and forms that only the parser reads."""
    plain = data_url(png(77))
    assert len(plain) > 600
    forms = [plain, plain.replace("image/png", "IMAGE/PNG"), plain[:300] + "\n" + plain[300:], plain.rstrip("=")]
    answers = [sturdy.chat([picture(form), {"type": "text", "text": "What?"}]).choices[0].message.content for form in forms]
    assert len(set(answers)) == 1
    broken = sturdy.post(**chat(picture(plain[:-8] + "!" + plain[-7:]), max_tokens=1))
    assert (
        broken.status_code == 400 and "its data is not base64" in broken.text and f"({len(plain):,} characters)" in broken.text
    )
    too_large = data_url(bytes(2000))
    refused = sturdy.post(**chat(picture(too_large), max_tokens=1))
    assert refused.status_code == 400 and f"({len(too_large):,} characters)" in refused.text
