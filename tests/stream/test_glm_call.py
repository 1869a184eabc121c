"""Tool calls as GLM-4.5V and later write them: read from text that comes in pieces, and forced by a grammar."""

import json
from typing import Any

import pytest

from sightline.prompt.template import ChatTemplate
from sightline.stream.answer_parts import AnswerParser, Calls, ContentDelta, ReasoningDelta, ToolCallDelta, parts_of
from sightline.stream.call_forms import call_reader
from sightline.stream.tool_grammar import tool_call_grammar
from stream.test_tool_grammar import accepts, named
from stream.test_xml_call import STOP, ZOOM


def call(name: str, between: str = "\n", **values: str) -> str:
    pairs = (f"<arg_key>{key}</arg_key>{between}<arg_value>{value}</arg_value>{between}" for key, value in values.items())
    return f"<tool_call>{name}{between}{''.join(pairs)}</tool_call>"


def parsed(text: str, size: int) -> tuple[str, str, list[tuple[str, Any]]]:
    """(reasoning, content, calls) of a text that comes in pieces of so many characters."""
    parser = AnswerParser(tools=True, reasoning=True, call=call_reader("glm", [ZOOM, STOP]))
    deltas = [delta for at in range(0, len(text), size) for delta in parser.feed(text[at : at + size])] + parser.finish()
    calls: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            if delta.name is not None:
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    texts = ["".join(d.text for d in deltas if isinstance(d, kind)) for kind in (ReasoningDelta, ContentDelta)]
    return texts[0], texts[1], [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("between", ["\n", ""], ids=["lines", "one line"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_read(size: int, between: str) -> None:
    """Red if a value loses a line or its type, a call's text leaks into the content, or the second call is lost."""
    first = call("zoom", between, note="3\n<b>two</b> lines\n", box="[1, 2]", exact="true", mode="near")
    text = f"<think>hm</think>\nI look.\n{first}\n{call('stop', between)}"
    values = {"note": "3\n<b>two</b> lines\n", "box": [1, 2], "exact": True, "mode": "near"}
    assert parsed(text, size) == ("hm", "I look.", [("zoom", values), ("stop", {})])


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "zoom", "arguments": {}}\n</tool_call>',
        "<tool_call>zoom\nbox=1\n</tool_call>",
        "<tool_call>zoom\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call> is a tag, <arg_key> another",
        "<tool_call>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>",
        call("zoom", box="[1, 2]").removesuffix("</tool_call>"),  # cut off before what it needs
        "<tool_call>zo",
    ],
)
def test_what_is_no_call_is_content(text: str, size: int) -> None:
    assert parsed(text, size) == ("", text, [])


@pytest.mark.parametrize("size", [1, 1000])
def test_a_stop_string_may_take_the_last_tag(size: int) -> None:
    """That of `parallel_tool_calls: false` is the tag itself."""
    text = call("zoom", box="[1]", mode="far").removesuffix("</tool_call>")
    assert parsed(text, size) == ("", "", [("zoom", {"box": [1], "mode": "far"})])
    assert parsed("<tool_call>stop\n", size) == ("", "", [("stop", {})])


def test_the_grammar_of_a_call() -> None:
    """Red if a required parameter may be left out, a value may be of another type, or a text may hold its own end."""
    structured = tool_call_grammar([ZOOM, STOP], "required", form="glm")
    good = call("zoom", note="any <text>\nof </arg> lines", box="[1, 2]", exact="true", mode="far")
    assert accepts(structured, good) and accepts(structured, call("stop"))
    assert accepts(structured, f"{call('zoom', box='[]', mode='near')}\n{call('stop')}")
    for wrong in (
        call("zoom", box="[1]"),
        call("zoom", box='["a"]', mode="near"),
        call("zoom", box="[1]", mode="middle"),
        call("zoom", box="[1]", exact="maybe", mode="near"),
        call("stop", box="[1]"),
        call("go"),
        f"Well. {good}",
    ):
        assert not accepts(structured, wrong), wrong
    alone = tool_call_grammar([ZOOM, STOP], named("stop"), form="glm")
    assert accepts(alone, call("stop")) and not accepts(alone, good)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{{ tools }}<tool_call>{name}<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>", "glm"),
        ("{{ tools }}<tool_call><function=f><parameter=p>", "xml"),
        ('{{ tools }}<tool_call>{"name": …}', "json"),
    ],
)
def test_the_template_says_which_form_it_is(source: str, form: str) -> None:
    assert ChatTemplate(source).call_form == form


def test_a_whole_answer_is_taken_apart() -> None:
    answer = f"<think>\nI should stop.\n</think>\n{call('stop')}"
    parts = parts_of(answer, Calls(True, call_reader("glm", [STOP])), starts_in_reasoning=False)
    assert (parts.content, parts.reasoning, [one.name for one in parts.calls]) == ("", "I should stop.", ["stop"])
