"""JSON in a string of JSON, and JSON that is nested deeply: the arguments of tool calls, and what is logged."""

import json
import re
from typing import Any

import msgspec
import pytest

from server.running import RunningServer
from sightline.server.body_files import parse_with_files
from sightline.server.chat import ChatEndpoint
from sightline.server.chat_prompt import template_messages
from sightline.server.errors import ApiError
from sightline.server.parse import MAX_LEVELS, MAX_VALUES, decoder_of, most_values, parse
from sightline.server.request_log import loggable

DECODER = decoder_of(ChatEndpoint.body, lenient=False)


def body_with(arguments: bytes) -> bytes:
    """`arguments` is a string as it stands in JSON."""
    call = b'{"id":"1","type":"function","function":{"name":"f","arguments":"%s"}}' % arguments
    return b'{"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[%s]}]}' % call


def arguments_of(body: bytes) -> Any:
    parsed, files = parse_with_files(body, DECODER, ChatEndpoint().media_urls)
    messages, _ = template_messages(parsed.messages, None, files)
    return messages[1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("hidden", [rb"{\"data:\u0022:[%s0]}", rb"{\"a\":[%s0]}"])
def test_values_in_arguments_are_counted(hidden: bytes) -> None:
    """Whoever hides them from the count of the body's values does not hide them from this one."""
    separators = b"0\\u002c" if b"data" not in hidden else b"0,"
    body = body_with(hidden % (separators * (MAX_VALUES + 10)))
    assert most_values(body) < MAX_VALUES
    with pytest.raises(ApiError) as caught:
        arguments_of(body)
    assert caught.value.status == 400 and caught.value.code == "too_many_values"
    few = arguments_of(body_with(hidden % (separators * 1000)))
    assert len(next(iter(few.values()))) == 1001


@pytest.mark.parametrize("depth", [10, 190, 210, 975, 1000, 5000, 100_000])
def test_arguments_may_be_nested(sturdy: RunningServer, depth: int) -> None:
    """An object where it can be parsed, else what it is: a string."""
    nested = '{"a":' + "[" * depth + "]" * depth + "}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": nested}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "y"}]
    answer = sturdy.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 200 or (answer.status_code == 400 and "tokens" in answer.text), answer.text


CHAT = '{"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"1","type":"function",\
"function":{"name":"f","arguments":ARGUMENTS}}]},{"role":"user","content":"y"}],"tools":[{"type":"function",\
"function":{"name":"f","parameters":PARAMETERS}}],"chat_template_kwargs":KWARGS,"metadata":METADATA,"max_tokens":1,\
"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":SCHEMA}}}'


@pytest.mark.parametrize("field", ["ARGUMENTS", "PARAMETERS", "KWARGS", "METADATA", "SCHEMA"])
def test_a_body_is_as_deep_as_it_may_be_and_no_deeper(sturdy: RunningServer, field: str) -> None:
    """Near 1,000 levels whatever recursed next failed with a 500, be it ours, the template's or an encoder."""
    for opening, end in ('{"a":[', "]}"), ('{"a":', "}"):
        for repeats in *range(20, 500, 60), *range(470, 500, 3), *range(940, 1010, 7), 1500, 3000:
            nested = opening * repeats + "1" + end * repeats
            depth = nested.count("{") + nested.count("[") + {"ARGUMENTS": 6, "PARAMETERS": 4, "SCHEMA": 3}.get(field, 1)
            body = re.sub("[A-Z]{5,}", lambda found: nested if found[0] == field else "{}", CHAT)  # noqa: B023
            answer = sturdy.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
            if depth > MAX_LEVELS:
                assert answer.status_code == 400 and ("levels" in answer.text or "recursion" in answer.text), answer.text
            elif field != "SCHEMA":  # the library for grammars has its own limit
                assert answer.status_code == 200, (depth, answer.text)


def test_levels() -> None:
    decoder = msgspec.json.Decoder(Any)
    for depth in 1, 2, MAX_LEVELS:
        parse(b"[" * depth + b"]" * depth, decoder)
    beside = b"[" + b'[{"a":[]}],' * MAX_LEVELS + b"1]"
    assert len(parse(beside, decoder)) == MAX_LEVELS + 1
    for deep in b"[" * (MAX_LEVELS + 1) + b"]" * (MAX_LEVELS + 1), beside[:-2] + b"[" * MAX_LEVELS + b"]" * MAX_LEVELS + b"]":
        with pytest.raises(ApiError) as caught:
            parse(deep, decoder)
        assert caught.value.status == 400 and caught.value.code == "too_many_levels"


def test_what_is_nested_deeply_can_be_logged() -> None:
    nested: Any = "end"
    for _ in range(5000):
        nested = [nested]
    assert json.dumps(loggable({"metadata": nested})).count("[") < 200
