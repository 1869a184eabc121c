"""The form of an answer that must call tools, as a grammar: what `AnswerParser` reads as calls, and nothing else."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sightline.errors import PromptError
from sightline.grammar.json_style import with_style
from sightline.types import StructuredOutput

ToolChoice = str | Mapping[str, Any]


def tool_call_grammar(tools: Sequence[Mapping[str, Any]], choice: ToolChoice, parallel: bool = True) -> StructuredOutput | None:
    """What `tool_choice` asks of an answer; None where it is free to call or not.

    "required" forces one or more calls (one, unless `parallel`), a named function exactly one call of it.
    """
    functions = dict(map(_read_tool, tools))
    if len(functions) < len(tools):
        raise PromptError("tools has two functions with the same name.")
    if choice in ("none", "auto"):
        return None
    if choice == "required":
        if not functions:
            raise PromptError("tool_choice is 'required', but there are no tools.")
        return _grammar(functions, parallel)
    name = _chosen_name(choice)
    if name not in functions:
        raise PromptError(f"tool_choice names function {name!r}, but tools has {', '.join(map(repr, functions)) or 'none'}.")
    return _grammar({name: functions[name]}, several=False)


def _read_tool(tool: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A function's name and the schema of its arguments."""
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type", "function") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise PromptError(f"tools has {str(tool)[:80]!r}, which is not a function with a name.")
    schema = function.get("parameters")
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise PromptError(f"The parameters of function {name!r} must be a JSON schema of type 'object'.")
    return name, {**schema, "type": "object"}


def _chosen_name(choice: ToolChoice) -> str:
    if isinstance(choice, Mapping) and choice.get("type") == "function" and isinstance(choice.get("function"), Mapping):
        name = choice["function"].get("name")
        if isinstance(name, str):
            return name
    raise PromptError(
        f"tool_choice is {str(choice)[:80]!r}, but must be 'none', 'auto', 'required' or "
        '{"type": "function", "function": {"name": ...}}.'
    )


def _grammar(functions: Mapping[str, Mapping[str, Any]], several: bool) -> StructuredOutput:
    lines = ['start: call ("\\n" call)*' if several else "start: call"]
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(functions))))
    for number, (name, schema) in enumerate(functions.items()):
        opening = _quoted(f'<tool_call>\n{{"name": {_quoted(name)}, "arguments": ')
        closing = _quoted("}\n</tool_call>")
        lines.append(f"call_{number}: {opening} arguments_{number} {closing}")
        lines.append(f"arguments_{number}: %json {json.dumps(with_style(dict(schema)))}")
    return StructuredOutput("lark", "\n".join(lines) + "\n")


def _quoted(text: str) -> str:
    """As a JSON string, which is also how Lark writes one."""
    return json.dumps(text, ensure_ascii=False)
