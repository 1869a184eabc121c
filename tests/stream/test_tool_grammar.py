"""What tool_choice asks of an answer, and choices that make no sense."""

from typing import Any

import pytest

from sightline.errors import PromptError
from sightline.grammar.compile import check, compile_grammar
from sightline.stream.tool_grammar import tool_call_grammar
from sightline.types import StructuredOutput
from stream.tokenizers_to_try import bytes_only, published


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **({"parameters": parameters} if parameters else {})}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


ZOOM = tool(
    "zoom", type="object", properties={"x": {"$ref": "#/$defs/n"}}, required=["x"], **{"$defs": {"n": {"type": "integer"}}}
)
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


def accepts(structured: StructuredOutput | None, text: str) -> bool:
    assert structured is not None
    tokenizer = bytes_only()
    check(structured, tokenizer)
    matcher = compile_grammar(structured, tokenizer).matcher(frozenset())
    tokens = tokenizer.encode(text)
    return matcher.state.try_consume_tokens(tokens) == len(tokens) and matcher.state.is_accepting()


def test_free_choices() -> None:
    assert tool_call_grammar([ZOOM], "auto") is None and tool_call_grammar([ZOOM], "none") is None
    assert tool_call_grammar([], "auto") is None


def test_required() -> None:
    structured = tool_call_grammar([ZOOM, tool("stop")], "required")
    zoom, stop = CALL % ("zoom", '{"x": 3}'), CALL % ("stop", "{}")
    assert accepts(structured, zoom) and accepts(structured, stop) and accepts(structured, f"{zoom}\n{stop}\n{zoom}")
    for wrong in (CALL % ("zoom", "{}"), CALL % ("zoom", '{"x": "3"}'), CALL % ("stop", '{"x": 3}'), CALL % ("go", "{}")):
        assert not accepts(structured, wrong)
    assert not accepts(structured, "") and not accepts(structured, f"Well. {zoom}") and not accepts(structured, f"{zoom}\n")
    alone = tool_call_grammar([ZOOM, tool("stop")], "required", parallel=False)
    assert accepts(alone, stop) and not accepts(alone, f"{zoom}\n{stop}")


def test_a_named_function() -> None:
    structured = tool_call_grammar([ZOOM, tool("stop")], named("stop"))
    assert accepts(structured, CALL % ("stop", "{}")) and not accepts(structured, CALL % ("zoom", '{"x": 3}'))


def test_the_tag_may_be_one_token() -> None:
    """Red when <tool_call> must be spelled in pieces although the model has a token for it."""
    tokenizer = published("qwen3")
    structured = tool_call_grammar([ZOOM], "required")
    assert structured is not None
    matcher = compile_grammar(structured, tokenizer).matcher(frozenset())
    tokens = tokenizer.encode(CALL % ("zoom", '{"x": 3}'))
    assert tokens[0] == tokenizer.id_of("<tool_call>")
    assert matcher.state.try_consume_tokens(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([ZOOM], named("pan"), "'pan'.*'zoom'"),
        ([], named("pan"), "'pan'.*none"),
        ([], "required", "no tools"),
        ([ZOOM], "sometimes", "sometimes"),
        ([ZOOM], {"type": "tool"}, "tool_choice"),
        ([ZOOM, ZOOM], "required", "same name"),
        ([{"type": "retrieval"}], "auto", "retrieval"),
        ([{"type": "function", "function": {"name": ""}}], "auto", "name"),
        ([tool("f", type="array")], "required", "'f'.*'object'"),
    ],
)
def test_refused(tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        tool_call_grammar(tools, choice)


def test_a_schema_that_cannot_be_used_is_refused_by_the_check() -> None:
    structured = tool_call_grammar([tool("f", type="object", properties={"x": {"type": "strin"}})], "required")
    assert structured is not None
    with pytest.raises(PromptError, match="strin"):
        check(structured, bytes_only())
