"""Which form an answer must have: response_format, tools and tool_choice of a chat."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sightline.grammar.compile import check, find_grammar
from sightline.prompt.tokenizer import Tokenizer
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.protocol import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    RegexFormat,
    Tool,
)
from sightline.stream.tool_grammar import tool_call_grammar
from sightline.types import StructuredOutput


@dataclass(frozen=True)
class Form:
    tools: tuple[Mapping[str, Any], ...]  # that the model is told of
    structured: StructuredOutput | None
    forced_calls: bool  # the answer is calls and nothing else


def form_of(body: ChatRequest) -> Form:
    """`after_reasoning` of its structure is left to whoever knows the prompt."""
    structured = _response_format(body)
    choice = body.tool_choice
    tools = plain_tools(body.tools)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice asks for a call, but there are no tools.", param="tool_choice")
        return Form((), structured, False)
    wanted = msgspec.to_builtins(choice) if isinstance(choice, NamedTool) else choice or "auto"
    grammar = tool_call_grammar(tools, wanted, parallel=body.parallel_tool_calls is not False)
    if wanted == "none":
        return Form((), structured, False)
    if grammar is None:
        if body.parallel_tool_calls is False:
            raise ApiError(
                400,
                "parallel_tool_calls is false, which is supported only where tool_choice is 'required' or names a function.",
                param="parallel_tool_calls",
                code="unsupported_value",
            )
        return Form(tools, structured, False)
    if structured is not None:
        raise ApiError(400, "response_format and a tool_choice that forces a call exclude each other.", param="tool_choice")
    return Form(tools, grammar, True)


def plain_tools(tools: Sequence[Tool] | None) -> tuple[dict[str, Any], ...]:
    """Tools as templates read them, without what was not given."""
    plain = [msgspec.to_builtins(tool) for tool in tools or ()]
    return tuple({**tool, "function": {k: v for k, v in tool["function"].items() if v is not None}} for tool in plain)


def _response_format(body: ChatRequest) -> StructuredOutput | None:
    wanted = body.response_format
    if isinstance(wanted, JsonObjectFormat):
        return StructuredOutput("json_object")
    if isinstance(wanted, JsonSchemaFormat):
        return StructuredOutput("json_schema", msgspec.json.encode(wanted.json_schema.schema).decode())
    if isinstance(wanted, RegexFormat):
        return StructuredOutput("regex", wanted.regex)
    return None


async def checked(context: ServerContext, form: Form, opens_reasoning: bool) -> StructuredOutput | None:
    """The structure that the engine will be asked for, once it is known that answers can have it. Compiles it in a thread."""
    if form.structured is None:
        return None
    structured = replace(form.structured, after_reasoning=opens_reasoning)
    tokenizer: Tokenizer = context.files.tokenizer
    if find_grammar(structured, tokenizer) is None:
        await asyncio.get_running_loop().run_in_executor(context.forms, check, structured, tokenizer)
    return structured
