"""Schemas as they are compiled: objects closed around the names that are given, formats known, white space settled."""

import json
from typing import Any

import pytest

from sightline.errors import PromptError
from sightline.grammar.compile import check, compile_grammar
from sightline.grammar.schema import FORMATS, prepared
from sightline.types import StructuredOutput
from stream.tokenizers_to_try import bytes_only

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
LIST = {"properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/L"}, {"type": "null"}]}}}
GROWN = {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"n": {"$ref": "#/$defs/G"}}}]}


def accepts(form: StructuredOutput, text: str) -> bool:
    tokenizer = bytes_only()
    state = compile_grammar(form, tokenizer).matcher(frozenset()).state
    ids = tokenizer.encode(text)
    taken = int(state.validate_tokens(ids))
    state.consume_tokens(ids[:taken])
    return taken == len(ids) and bool(state.is_accepting())


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (A, ['{"a":1}'], ['{"a":1,"c":2}', "{}"]),
        ({**A, "additionalProperties": True}, ['{"a":1,"c":2}'], []),
        ({**A, "additionalProperties": {"type": "null"}}, ['{"a":1,"c":null}'], ['{"a":1,"c":2}']),
        ({**A, "patternProperties": {"^c": {"type": "null"}}}, ['{"a":1,"c":null}'], []),
        ({"type": "object"}, ["{}", '{"c":2}'], []),
        ({"type": "object", "properties": {}}, ["{}"], ['{"c":2}']),
        ({**A, "required": ["a", "z"]}, ['{"a":1,"z":[]}'], ['{"a":1}', '{"a":1,"z":1,"c":2}']),
        ({"properties": {"in": A}, "required": ["in"], "type": "object"}, ['{"in":{"a":1}}'], ['{"in":{"a":1,"c":2}}']),
        ({"type": "array", "items": A}, ['[{"a":1}]'], ['[{"a":1,"c":2}]']),
        ({"allOf": [A, B]}, ['{"a":1,"b":2}'], ['{"a":1}', '{"a":1,"b":2,"c":3}', '{"a":1,"b":"x"}']),
        ({"allOf": [A, {**B, "additionalProperties": True}]}, ['{"a":1,"b":2,"c":3}'], ['{"a":1}']),
        ({"$defs": {"A": A}, "allOf": [{"$ref": "#/$defs/A"}, B]}, ['{"a":1,"b":2}'], ['{"a":1,"b":2,"c":3}']),
        ({"$defs": {"A": A}, "allOf": [{"$ref": "#/$defs/A"}], "title": "x"}, ['{"a":1}'], ['{"a":1,"c":3}']),
        ({"$defs": {"A": A}, "$ref": "#/$defs/A", **B}, ['{"b":2,"a":1}'], ['{"b":2,"a":1,"c":3}', '{"b":2}']),
        ({"definitions": {"A/B": A}, "$ref": "#/definitions/A~1B"}, ['{"a":1}'], ['{"a":1,"c":3}']),
        ({"anyOf": [A, B]}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":2}', '{"a":1,"c":2}']),
        (
            {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"], "anyOf": [A, B]},
            ['{"k":1,"a":1}', '{"k":1,"b":1}'],
            ['{"k":1}', '{"k":1,"a":1,"c":2}', '{"k":1,"a":"x"}'],
        ),
        ({"$ref": "#/$defs/L", "$defs": {"L": LIST}}, ['{"v":1,"next":{"v":2,"next":null}}'], ['{"v":1,"next":{"c":1}}']),
        ({"$ref": "#/$defs/G", "$defs": {"A": A, "G": GROWN}}, ['{"a":1,"n":{"a":2}}'], ['{"a":1,"n":{"a":2,"c":3}}']),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_objects_are_closed(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    """Red when a member that nobody named is allowed, or one that somebody did is not."""
    form = StructuredOutput("json_schema", json.dumps(schema))
    check(form, bytes_only())
    assert [text for text in good if not accepts(form, text)] == []
    assert [text for text in bad if accepts(form, text)] == []


def test_schemas_that_grow_are_refused() -> None:
    """Red when a small schema, written out, takes all memory: each definition uses the next twice."""
    defs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, "properties": {}} for n in range(40)}
    with pytest.raises(PromptError, match="too complex"):
        prepared({"$defs": defs, "$ref": "#/$defs/d0", "properties": {}}, "compact")


def test_a_reference_that_leads_nowhere_new_ends() -> None:
    """Red when a circle of references is followed for ever. The library says what it thinks of it."""
    for schema in (
        {"$ref": "#", "properties": {}},
        {"$defs": {"a": {"$ref": "#/$defs/a", "properties": {}}}, "$ref": "#/$defs/a"},
    ):
        assert prepared(schema, "compact")


FORMAT_EXAMPLES = {
    "date": ("2024-02-28", "2024-02-31"),
    "date-time": ("2024-02-28T10:00:00Z", "2024-02-28T25:00:00Z"),
    "time": ("10:00:00Z", "25:00:00Z"),
    "duration": ("P1D", "1D"),
    "email": ("a@b.co", "ab"),
    "hostname": ("a.b", "-a"),
    "ipv4": ("1.2.3.4", "300.1.1.1"),
    "ipv6": ("::1", "zz"),
    "uri": ("http://a.b/c", "a b"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123e4567"),
}


def test_formats_are_checked() -> None:
    """Red when a format is accepted and not kept to, or the list of them is not what the library knows."""
    assert set(FORMAT_EXAMPLES) == set(FORMATS)
    for name, (good, bad) in FORMAT_EXAMPLES.items():
        form = StructuredOutput("json_schema", json.dumps({"type": "string", "format": name}))
        assert accepts(form, f'"{good}"') and not accepts(form, f'"{bad}"'), name


def test_other_formats_are_refused_or_say_nothing_of_the_text() -> None:
    with pytest.raises(PromptError, match=r"'colour', which cannot be checked; there are date, .*, uuid"):
        check(StructuredOutput("json_schema", '{"properties": {"a": {"type": "string", "format": "colour"}}}'), bytes_only())
    for schema in (
        {"type": "string", "format": "password"},
        {"properties": {"format": {"const": "colour"}}},
        {"type": "integer", "format": "int64"},
    ):
        check(StructuredOutput("json_schema", json.dumps(schema)), bytes_only())


@pytest.mark.parametrize(
    ("style", "text"), [("compact", '{"a":[1,2],"b":1}'), ("spaced", '{"a": [1, 2], "b": 1}')], ids=["compact", "spaced"]
)
def test_white_space_is_the_styles(style: Any, text: str) -> None:
    """Red when JSON is not compact, or arguments of calls are not written as templates write them."""
    from sightline.types import StructuredOutput as Form

    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}},
        "required": ["a", "b"],
    }
    form = Form("lark", f"start: answer\nanswer: %json {json.dumps(prepared(schema, style))}")
    assert accepts(form, text)
    assert not accepts(form, json.dumps(json.loads(text), separators=(",", ":") if style == "spaced" else (", ", ": ")))


def test_gbnf_is_read() -> None:
    """llama.cpp's notation, which SGLang and vLLM call ebnf and grammar."""
    form = StructuredOutput("gbnf", 'root ::= "a" digit+\ndigit ::= [0-9]')
    check(form, bytes_only())
    assert accepts(form, "a12") and not accepts(form, "a") and not accepts(form, "b1")
    for text in ("root ::=", "root ::= " + "(" * 20_000, "nonsense", "root ::= other"):
        with pytest.raises(PromptError, match="GBNF grammar for the answer cannot be used"):
            check(StructuredOutput("gbnf", text), bytes_only())
