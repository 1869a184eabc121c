"""Tool calls as Qwen3.5 writes them: read from text that comes in pieces, and forced by a grammar."""

import json
from typing import Any

import pytest

from sightline.stream.answer_parts import AnswerParser, ContentDelta, ReasoningDelta, ToolCallDelta
from sightline.stream.call_forms import call_reader
from sightline.stream.tool_grammar import tool_call_grammar
from sightline.stream.xml_call import read_value
from stream.test_tool_grammar import accepts, named, tool

ZOOM = tool(
    "zoom",
    type="object",
    properties={
        "note": {"type": "string"},
        "box": {"type": "array", "items": {"$ref": "#/$defs/n"}},
        "exact": {"type": "boolean"},
        "mode": {"enum": ["near", "far"]},
    },
    required=["box", "mode"],
    **{"$defs": {"n": {"type": "integer"}}},
)
STOP = tool("stop")


def call(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def parsed(text: str, size: int, forced: bool = False) -> tuple[str, str, list[tuple[str, Any]]]:
    """(reasoning, content, calls) of a text that comes in pieces of so many characters."""
    parser = AnswerParser(tools=True, reasoning=True, forced_calls=forced, call=call_reader("xml", [ZOOM, STOP]))
    deltas = [delta for at in range(0, len(text), size) for delta in parser.feed(text[at : at + size])] + parser.finish()
    calls: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            if delta.name is not None:
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    texts = ["".join(d.text for d in deltas if isinstance(d, kind)) for kind in (ReasoningDelta, ContentDelta)]
    return texts[0], texts[1], [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_read(size: int, forced: bool) -> None:
    """Red if a value loses a line or its type, a call's text leaks into the content, or the second call is lost."""
    first = call("zoom", note="3\n<b>two</b> lines\n", box="[1, 2]", exact="True", mode="near")
    text = f"<think>\nhm\n</think>\n\nI look.\n\n{first}\n{call('stop')}"
    values = {"note": "3\n<b>two</b> lines\n", "box": [1, 2], "exact": True, "mode": "near"}
    assert parsed(text, size, forced) == ("hm", "I look.", [("zoom", values), ("stop", {})])


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n{'name': 1}\n</tool_call>",
        "<tool_call>\n<function=zoom>\nbox=1\n</function>\n</tool_call>",
        "<tool_call> is a tag, <function=f> another",
        "<tool_call>\n<function=zoom>\n<parameter=box>\n[1",
    ],
)
def test_what_is_no_call_is_content(text: str, size: int) -> None:
    assert parsed(text, size) == ("", text, [])


@pytest.mark.parametrize("size", [1, 1000])
def test_an_answer_may_end_before_the_last_tag(size: int) -> None:
    text = call("stop").removesuffix("\n</tool_call>")
    assert parsed(text, size) == ("", "", [("stop", {})])


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("12", {"type": "string"}, "12"),
        ("12", {"type": "integer"}, 12),
        ("12", None, "12"),
        ("12", {"type": ["string", "integer"]}, "12"),
        ("12", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 12),
        ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("false", {"type": "boolean"}, False),
        ('{"a": "b"}', {"type": "object"}, {"a": "b"}),
        ('{"a": ', {"type": "object"}, '{"a": '),
        ("2", {"enum": [1, 2]}, 2),
        ("near", {"enum": ["near", "far"]}, "near"),
    ],
)
def test_values(text: str, schema: Any, value: Any) -> None:
    assert read_value(text, schema) == value


def test_the_grammar_of_a_call() -> None:
    """Red if a required parameter may be left out, a value may be of another type, or a text may hold its own end."""
    structured = tool_call_grammar([ZOOM, STOP], "required", form="xml")
    good = call("zoom", note="any <text>\nof </param> lines", box="[1, 2]", exact="true", mode="far")
    assert accepts(structured, good) and accepts(structured, call("stop"))
    assert accepts(structured, f"{call('zoom', box='[]', mode='near')}\n{call('stop')}")
    for wrong in (
        call("zoom", box="[1]"),
        call("zoom", box='["a"]', mode="near"),
        call("zoom", box="[1]", mode="middle"),
        call("zoom", box="[1]", exact="maybe", mode="near"),
        call("zoom", note="a\n</parameter>\n<parameter=x>\nb", box="[1]", mode="near"),
        call("stop", box="[1]"),
        call("go"),
        f"Well. {good}",
    ):
        assert not accepts(structured, wrong), wrong
    alone = tool_call_grammar([ZOOM, STOP], named("stop"), form="xml")
    assert accepts(alone, call("stop")) and not accepts(alone, good) and not accepts(alone, f"{call('stop')}\n{call('stop')}")
