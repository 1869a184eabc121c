"""Forms that cannot be used are refused in one sentence, hostile ones soon; good ones are compiled once."""

import json
import time
from typing import Any

import pytest

from sightline.errors import PromptError
from sightline.grammar import compile as compiling
from sightline.grammar.compile import check, compile_grammar, find_grammar
from sightline.grammar.matcher import allowed_ids
from sightline.types import StructuredOutput
from stream.tokenizers_to_try import bytes_only


def nested(depth: int) -> str:
    return '{"type": "array", "items": ' * depth + "{}" + "}" * depth


def union_member(kind: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": kind}, "more": {}}, "required": ["kind"]}


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"if": {}, "then": {}}', "if"),
        ("json_schema", '{"$ref": "https://example.com/schema"}', "example.com"),
        ("json_schema", '{"$ref": "#/nowhere"}', "nowhere"),
        ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 1}', "minimum"),
        ("json_schema", '{"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}', "oneOf.*supported"),
        ("json_schema", '{"$ref": "#"}', "no answer fits"),
        ("json_schema", '{"type"', "not JSON"),
        ("json_schema", "[1]", "must be an object"),
        ("json_schema", "true", "must be an object"),
        ("json_schema", nested(3000), "characters|not JSON|recursion"),
        ("json_schema", "[" * 60_000, "not JSON"),
        ("json_schema", '{"const": "\ud800"}', "surrogate"),
        ("json_schema", '{"description": "' + "x" * 70_000 + '"}', "70019 characters"),
        ("json_schema", json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}), "complex"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", r"[^\s\S]", "no answer fits"),
        ("regex", "", "empty"),
        ("regex", "()", "empty answer only"),
        ("regex", "(" * 300 + "a" + ")" * 300, "nested"),
        ("regex", "(((a{1000}){1000}){1000})", "complex"),
        ("json_schema", json.dumps({"allOf": [{"pattern": f"^(a|b)*a(a|b){{{i}}}$"} for i in range(1, 40)]}), "complex"),
        ("lark", "start: A\nA: /(a|b)*a(a|b){25}/ & /(a|b)*b(a|b){26}/ & /(a|b)*a(a|b){27}c/ & /(a|b)*b/", "complex|fits"),
        ("lark", "start: foo", "foo"),
        ("lark", 'begin: "a"', "start"),
        ("lark", 'start: "a', "lexer"),
        ("lark", "start: " + "(" * 20_000, "nested"),
        ("yaml", "", "yaml"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused_by_name(kind: Any, text: str, named: str) -> None:
    """One sentence each, and no crash of the process, which a stack that overflows in the library would be."""
    with pytest.raises(PromptError, match=named) as refused:
        check(StructuredOutput(kind, text), bytes_only())
    message = str(refused.value)
    assert message.endswith(".") and "\n" not in message and len(message) < 400
    message.encode()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", nested(60)),
        ("json_schema", json.dumps({"oneOf": [union_member("a"), union_member("b")]})),
        ("json_schema", json.dumps({"enum": [f"value {i}" for i in range(3000)]})),
        ("json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 100000, "maxItems": 1000000}'),
        ("json_schema", '{"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": false}'),
        ("json_schema", json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}})),
        ("regex", "|".join(f"w{i}" for i in range(8000))),
        ("regex", "(?s:.*)a(?s:.){100}"),
        ("regex", "a/b\n[/]"),
        ("lark", 'start: "a" start | "b"'),
        ("json_object", ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_large_ones_that_can_be_used(kind: Any, text: str) -> None:
    """Far above what they need on a loaded machine; red when something is compiled whose work is not bounded."""
    begun = time.process_time()
    check(StructuredOutput(kind, text), bytes_only())
    assert time.process_time() - begun < 20


def test_compiled_once_and_forgotten_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = bytes_only()
    monkeypatch.setattr(compiling, "MAX_CACHED", 3)
    forms = [StructuredOutput("regex", f"once{i}") for i in range(4)]
    first = compile_grammar(forms[0], tokenizer)
    assert compile_grammar(StructuredOutput("regex", "once0"), tokenizer) is first
    for form in forms[1:]:
        compile_grammar(form, tokenizer)
    assert find_grammar(forms[3], tokenizer) is not None and find_grammar(forms[0], tokenizer) is None


def test_what_is_known_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    form = StructuredOutput("json_schema", '{"const": "known"}')
    check(form, bytes_only())
    monkeypatch.setattr(compiling, "judge", lambda *_: pytest.fail("a process for nothing"))
    check(form, bytes_only())


def test_the_states_of_answers_are_their_own() -> None:
    """Red when two answers to a request share a state."""
    tokenizer = bytes_only()
    grammar = compile_grammar(StructuredOutput("regex", "abc|xyz"), tokenizer)
    one, other = grammar.matcher(frozenset()), grammar.matcher(frozenset())
    one.advance(ord("a"))
    other.advance(ord("x"))
    assert allowed_ids(one, 300).tolist() == [ord("b")] and allowed_ids(other, 300).tolist() == [ord("y")]


def test_white_space_in_json_is_bounded() -> None:
    """Red when a model that likes white space could write it until max_tokens, or at all where it was not asked for. A schema's
    own settings do not count."""
    tokenizer = bytes_only()
    matcher = compile_grammar(StructuredOutput("json_schema", '{"type": "object"}'), tokenizer).matcher(frozenset())
    for char in '{"a":1,"b":2':
        assert not {ord(" "), ord("\n")} & set(allowed_ids(matcher, 300)) or char in 'ab"'
        matcher.advance(ord(char))
    for text in ('{"type": "object"}', '{"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+"}}'):
        form = StructuredOutput("json_schema", text, white_space=True)
        matcher = compile_grammar(form, tokenizer).matcher(frozenset())
        for char in '{"a"\n' + " " * 32:
            assert ord(char) in allowed_ids(matcher, 300)
            matcher.advance(ord(char))
        assert allowed_ids(matcher, 300).tolist() == [ord(":")]


def test_after_reasoning() -> None:
    """Anything may stand before </think>, and after it only the form, at most two newlines apart."""
    tokenizer = bytes_only()
    for kind, text in (("json_schema", '{"const": "a"}'), ("regex", '"a"'), ("lark", 'start: "\\"a\\""')):
        form = StructuredOutput(kind, text, after_reasoning=True)
        check(form, tokenizer)
        matcher = compile_grammar(form, tokenizer).matcher(frozenset())
        for token in tokenizer.encode('Perhaps {"b"}?\n</think>\n\n'):
            assert len(allowed_ids(matcher, 300)) > 200 or token in allowed_ids(matcher, 300)
            matcher.advance(token)
        assert allowed_ids(matcher, 300).tolist() == [ord('"')]
        for char in '"a"':
            assert not matcher.complete
            matcher.advance(ord(char))
        assert matcher.complete, (kind, matcher.error)
