"""However an answer is cut into pieces, its parts are those that a plain reading of the whole text finds."""

import contextlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sightline.stream.answer_parts import AnswerParser, ContentDelta, Delta, ReasoningDelta, ToolCallDelta


@dataclass
class Parts:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def collect(deltas: Iterable[Delta]) -> Parts:
    parts = Parts()
    ids = set()
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                assert text
                parts.content += text
            case ReasoningDelta(text):
                assert text
                parts.reasoning += text
            case ToolCallDelta(index, None, None, arguments):
                assert index == len(parts.calls) - 1 and arguments
                parts.calls[-1] = (parts.calls[-1][0], parts.calls[-1][1] + arguments)
            case ToolCallDelta(index, id, name, arguments):
                assert index == len(parts.calls) and id and name and arguments == ""
                ids.add(id)
                parts.calls.append((name, ""))
    assert len(ids) == len(parts.calls)
    return parts


def parse(pieces: Iterable[str], **options: Any) -> Parts:
    parser = AnswerParser(**options)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return collect(deltas + parser.finish())


# ---- The plain reading


class Members(list):
    """An object as a list of pairs, so that members with the same name are seen."""


def refuse(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are not JSON


DECODER = json.JSONDecoder(object_pairs_hook=Members, parse_constant=refuse)


def call_at(text: str) -> tuple[tuple[str, str], int] | None:
    """The call that text begins with, right after its tag, and how long it is."""
    start = len(text) - len(text.lstrip(" \t\n\r"))
    if not text.startswith("{", start):
        return None
    try:
        value, end = DECODER.raw_decode(text, start)
    except ValueError:
        return None
    members = dict(value)
    rest = text[end:].lstrip(" \t\n\r")
    name, arguments = members.get("name"), members.get("arguments")
    if len(members) < len(value) or not isinstance(name, str) or not name or any("\ud800" <= c <= "\udfff" for c in name):
        return None
    if arguments is not None and not isinstance(arguments, Members):
        return None
    if rest.startswith("</tool_call>"):
        length = len(text) - len(rest) + len("</tool_call>")
    elif "</tool_call>".startswith(rest):
        length = len(text)
    else:
        return None
    return (name, "{}" if arguments is None else source_of_arguments(text[start:end])), length


def source_of_arguments(text: str) -> str:
    """The arguments as they are written, found by trying every place where their object could begin."""
    for start in range(len(text)):
        if text[start] != "{" or start == 0:
            continue
        try:
            _, end = DECODER.raw_decode(text, start)
        except ValueError:
            continue
        with contextlib.suppress(ValueError):
            if dict(DECODER.decode(text[:start] + '"here"' + text[end:])).get("arguments") == "here":
                return text[start:end]
    raise AssertionError(text)


def plain_parse(text: str, tools: bool, reasoning: bool, starts_in_reasoning: bool = False) -> Parts:
    parts = Parts()
    if reasoning:
        opened = text.lstrip().startswith("<think>")
        inner = text.lstrip()[len("<think>") :] if opened else text
        if opened or starts_in_reasoning:
            thought, closed, text = inner.partition("</think>")
            parts.reasoning = thought.strip("\n") if closed else thought.lstrip("\n")
            text = text.lstrip("\n")
    if not tools:
        parts.content = text
        return parts
    said_before_a_call = False
    while "<tool_call>" in text:
        before, tag, text = text.partition("<tool_call>")
        parts.content += before
        found = call_at(text)
        if found is None:
            parts.content += tag
            continue
        said_before_a_call = said_before_a_call or (not parts.calls and bool(parts.content.strip()))
        parts.calls.append(found[0])
        text = text[found[1] :]
    parts.content += text
    if parts.calls:
        parts.content = parts.content.rstrip()
        if not said_before_a_call:
            parts.content = parts.content.lstrip()
    return parts


# ---- Texts to try

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
argument_objects = st.dictionaries(
    st.sampled_from(["a", "b", "name", "arguments", "</tool_call>", '"']), json_values, max_size=3
)


@st.composite
def calls(draw: st.DrawFn) -> str:
    members: dict[str, Any] = {"name": draw(st.sampled_from(["zoom", "f", 'q"', "ü"]))}
    if draw(st.booleans()):
        members["arguments"] = draw(argument_objects)
    if draw(st.booleans()):
        members["more"] = draw(json_values)
    names = draw(st.permutations(list(members)))
    text = json.dumps({n: members[n] for n in names}, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    space = st.sampled_from(["", "\n", " \n "])
    return f"<tool_call>{draw(space)}{text}{draw(space)}</tool_call>"


scraps = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<", "</", "<tool_", "call>", "\n", " ", "Hello"),
        *("{", "}", '"', "\\", ",", ":", "[", "]", '"name"', "null", "01", "NaN", "\ud800"),
        *('{"name": "f"}', '{"name": "f", "arguments": ', '{"name": "f", "name": "g"}'),
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> str:
    text = "".join(draw(st.lists(calls() | scraps | st.text(max_size=4), max_size=8)))
    for _ in range(draw(st.integers(0, 2))):  # damage
        if text:
            place = draw(st.integers(0, len(text) - 1))
            text = text[:place] + draw(st.sampled_from(["", "x", "{", "\n", '"'])) + text[place + 1 :]
    return text


def cut(text: str, places: list[float]) -> list[str]:
    at = [0, *sorted(int(place * len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(at)]


@given(answers(), st.booleans(), st.booleans(), st.booleans(), st.lists(st.floats(0, 1), max_size=6))
@example('<tool_call>{"name": "f"}</tool_', True, False, False, [])
@example(' \n<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>', True, False, False, [])
@example('<think>\n\nhm\n\n</think>\n\n <tool_call>{"name":"f"}</tool_call>\n', True, True, False, [])
@example('<tool_call><tool_call>{"name": "f"}</tool_call>', True, False, False, [0.5])
@example('<tool_call>{"arguments": {"name": 1}, "name": "\\ud800"}</tool_call>', True, False, False, [])
@example('<tool_call>{"argum\\u0065nts": {"a": 1.50}, "name": "f"}</tool_call>', True, False, False, [])
def test_any_cut_gives_the_plain_reading(text: str, tools: bool, reasoning: bool, starts: bool, places: list[float]) -> None:
    expected = plain_parse(text, tools, reasoning, starts)
    options = {"tools": tools, "reasoning": reasoning, "starts_in_reasoning": starts}
    assert parse([text], **options) == expected
    assert parse(text, **options) == expected  # character by character
    assert parse(cut(text, places), **options) == expected


@given(answers(), st.lists(st.floats(0, 1), max_size=6))
def test_forced_calls_do_not_depend_on_the_cut(text: str, places: list[float]) -> None:
    options = {"tools": True, "reasoning": False, "forced_calls": True}
    assert parse(text, **options) == parse([text], **options) == parse(cut(text, places), **options)


@given(st.lists(st.tuples(st.sampled_from(["f", "g"]), argument_objects), min_size=1, max_size=3), st.booleans())
def test_forced_calls_stream_their_arguments(wanted: list[tuple[str, dict[str, Any]]], ascii_only: bool) -> None:
    """Red when arguments wait for the end of the call, or when a piece is lost or comes twice."""
    dumped = [(name, json.dumps(arguments, ensure_ascii=ascii_only)) for name, arguments in wanted]
    text = "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {body}}}\n</tool_call>' for name, body in dumped)
    assert parse(text, tools=True, reasoning=False, forced_calls=True) == Parts(calls=dumped)
    parser = AnswerParser(tools=True, reasoning=False, forced_calls=True)
    opening, body, _ = text.partition(dumped[0][1])
    parts = collect([delta for piece in (opening, body) for delta in parser.feed(piece)])
    assert parts.calls == [dumped[0]], "everything of the first call's arguments has come"


# ---- By hand


def test_a_whole_answer() -> None:
    text = (
        '<think>\nTwo signs.\n</think>\n\nLet me look.\n<tool_call>\n{"name": "zoom", "arguments": {"x": 1.50}}\n</tool_call>\n'
        '<tool_call>\n{"name": "rotate", "arguments": {}}\n</tool_call>'
    )
    expected = Parts("Let me look.", "Two signs.", [("zoom", '{"x": 1.50}'), ("rotate", "{}")])
    assert parse([text], tools=True, reasoning=True) == expected
    after_tag = text.removeprefix("<think>\n")
    assert parse([after_tag], tools=True, reasoning=True, starts_in_reasoning=True) == expected
    assert parse([text], tools=True, reasoning=True, starts_in_reasoning=True) == expected
    assert parse([text], tools=False, reasoning=False) == Parts(text)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"a": 1,}}',
        "{'name': 'f'}",
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {}}',
        '[{"name": "f"}]',
        '{"name": "f"} and',
        '{"name": "f", "arguments": {"a": "line\nbreak"}}',
        '{"name": "f", "name": "g"}',
        "",
    ],
)
def test_what_is_not_a_call_is_content(body: str) -> None:
    """Nothing is lost, and a good call after it is found."""
    bad = f"<tool_call>\n{body}\n</tool_call>"
    assert parse(bad, tools=True, reasoning=False) == Parts(bad)
    good = '<tool_call>{"name": "g"}</tool_call>'
    assert parse(bad + good, tools=True, reasoning=False) == Parts(bad, calls=[("g", "{}")])


def test_text_comes_out_as_soon_as_it_is_sure() -> None:
    parser = AnswerParser(tools=True, reasoning=True)
    assert parser.feed("A ") == [ContentDelta("A")]
    assert parser.feed("b <too") == [ContentDelta(" b")]
    assert parser.feed("l") == []
    assert parser.feed("s") == [ContentDelta(" <tools")]
    assert parser.finish() == []
    thinking = AnswerParser(tools=False, reasoning=True, starts_in_reasoning=True)
    assert thinking.feed("Hm\n") == [ReasoningDelta("Hm")]
    assert thinking.feed("so</thi") == [ReasoningDelta("\nso")]
    assert thinking.feed("nk>\n\nYes") == [ContentDelta("Yes")]


def test_long_hostile_answers_take_linear_time() -> None:
    """Red when each of many openings is followed to the end of the text: that would take minutes."""
    for period in ("<tool_call>", '<tool_call>{"', '<tool_call>{"a":"', '<tool_call>{"a":[', "<tool_call>{\n"):
        text = period * (200_000 // len(period))
        assert parse([text], tools=True, reasoning=False) == Parts(text)
