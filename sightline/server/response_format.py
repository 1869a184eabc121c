"""Which form an answer must have: response_format, tools and tool_choice of a chat."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from llguidance.gbnf_to_lark import is_lark_syntax

from sightline.grammar.compile import check, find_grammar
from sightline.prompt.tokenizer import Tokenizer
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.protocol import (
    ChatRequest,
    CompletionRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    RegexFormat,
    StructuredOutputs,
    Tool,
)
from sightline.stream.answer_parts import END_CALL
from sightline.stream.tool_grammar import tool_call_grammar
from sightline.types import CallForm, StructuredOutput


@dataclass(frozen=True)
class ResponseFormat:
    tools: tuple[Mapping[str, Any], ...]  # that the model is told of
    structured: StructuredOutput | None
    forced_calls: bool  # the answer is calls and nothing else
    stop: tuple[str, ...] = ()  # what ends it besides


def response_format_of(body: ChatRequest, form: CallForm) -> ResponseFormat:
    """`after_reasoning` of its structure is left to whoever knows the prompt. `form`: how the model writes calls."""
    structured = structure_of(body)
    choice = body.tool_choice
    tools = plain_tools(body.tools)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice asks for a call, but there are no tools.", param="tool_choice")
        return ResponseFormat((), structured, False)
    wanted = msgspec.to_builtins(choice) if isinstance(choice, NamedTool) else choice or "auto"
    grammar = tool_call_grammar(tools, wanted, parallel=body.parallel_tool_calls is not False, form=form)
    if wanted == "none":
        return ResponseFormat((), structured, False)
    if grammar is None:
        return ResponseFormat(tools, structured, False, (END_CALL,) if body.parallel_tool_calls is False else ())
    return ResponseFormat(tools, grammar, True)  # a form of text is kept to as well: there is none


def plain_tools(tools: Sequence[Tool] | None) -> tuple[dict[str, Any], ...]:
    """Tools as templates read them, without what was not given."""
    plain = [msgspec.to_builtins(tool) for tool in tools or ()]
    return tuple({**tool, "function": {k: v for k, v in tool["function"].items() if v is not None}} for tool in plain)


def structure_of(body: ChatRequest | CompletionRequest) -> StructuredOutput | None:
    """The one form that a body asks for, in whichever of the fields that OpenAI's, vLLM's and SGLang's clients have for it."""
    given: dict[str, StructuredOutput] = {}
    if isinstance(body, ChatRequest):
        wanted = body.response_format
        if isinstance(wanted, JsonObjectFormat):
            given["response_format"] = StructuredOutput("json_object")
        elif isinstance(wanted, JsonSchemaFormat):
            given["response_format"] = _json(wanted.json_schema.schema)
        elif isinstance(wanted, RegexFormat):
            given["response_format"] = StructuredOutput("regex", wanted.regex)
    for name, schema in (("guided_json", body.guided_json), ("json_schema", body.json_schema)):
        if schema is not None:
            given[name] = _json(schema)
    for name, expression in (("guided_regex", body.guided_regex), ("regex", body.regex)):
        if expression is not None:
            given[name] = StructuredOutput("regex", expression)
    for name, grammar in (("guided_grammar", body.guided_grammar), ("ebnf", body.ebnf)):
        if grammar is not None:
            given[name] = _grammar(grammar)
    if body.guided_choice is not None:
        given["guided_choice"] = _choice(body.guided_choice)
    if body.guided_json_object:
        given["guided_json_object"] = StructuredOutput("json_object")
    if body.structured_outputs is not None:
        given |= _structured_outputs(body.structured_outputs)
    return _only(given)


def _structured_outputs(wanted: StructuredOutputs) -> dict[str, StructuredOutput]:
    given = {
        "structured_outputs.json": _json(wanted.json) if wanted.json is not None else None,
        "structured_outputs.regex": StructuredOutput("regex", wanted.regex) if wanted.regex is not None else None,
        "structured_outputs.choice": _choice(wanted.choice) if wanted.choice is not None else None,
        "structured_outputs.grammar": _grammar(wanted.grammar) if wanted.grammar is not None else None,
        "structured_outputs.json_object": StructuredOutput("json_object") if wanted.json_object else None,
    }
    found = {name: form for name, form in given.items() if form is not None}
    if not found:
        names = "json, regex, choice, grammar or json_object"
        raise ApiError(400, f"structured_outputs must have one of {names}.", param="structured_outputs")
    if wanted.disable_any_whitespace is False:
        return {name: replace(form, white_space=True) for name, form in found.items()}
    return found


def _only(given: dict[str, StructuredOutput]) -> StructuredOutput | None:
    if len(given) > 1:
        first, second, *_ = given
        raise ApiError(400, f"{first} and {second} exclude each other: an answer has one form.", param=second)
    return next(iter(given.values()), None)


def _json(schema: dict[str, Any] | str) -> StructuredOutput:
    return StructuredOutput("json_schema", schema if isinstance(schema, str) else msgspec.json.encode(schema).decode())


def _choice(choices: list[str]) -> StructuredOutput:
    """Lark writes a text as JSON does."""
    return StructuredOutput("lark", "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices))


def _grammar(text: str) -> StructuredOutput:
    """In Lark, or in the notation of llama.cpp, which others call EBNF."""
    return StructuredOutput("gbnf" if "::=" in text and not is_lark_syntax(text) else "lark", text)


async def checked(
    context: ServerContext, structured: StructuredOutput | None, opens_reasoning: bool
) -> StructuredOutput | None:
    """The structure that the engine will be asked for, once it is known that answers can have it. Compiles it in a thread."""
    if structured is None:
        return None
    structured = replace(structured, after_reasoning=opens_reasoning)
    tokenizer: Tokenizer = context.files.tokenizer
    if find_grammar(structured, tokenizer) is None:
        await asyncio.get_running_loop().run_in_executor(context.forms, check, structured, tokenizer)
    return structured
