"""The form of an answer that must call tools, as a grammar: what `AnswerParser` reads as calls, and nothing else."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sightline.errors import PromptError
from sightline.grammar.schema import prepared
from sightline.stream.xml_call import may_be_string
from sightline.types import StructuredOutput

ToolChoice = str | Mapping[str, Any]
_END_VALUE = r'"\n</parameter>\n"'
_TEXT = "text_value"
_TEXT_RULE = _TEXT + r"[lazy]: /(?s:.*)\n<\/parameter>\n/"  # up to the first end, and that


def tool_call_grammar(
    tools: Sequence[Mapping[str, Any]], choice: ToolChoice, parallel: bool = True, xml: bool = False
) -> StructuredOutput | None:
    """What `tool_choice` asks of an answer; None where it is free to call or not. `xml`: calls are as in xml_call.py.

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
        return _grammar(functions, parallel, xml)
    name = _chosen_name(choice)
    if name not in functions:
        raise PromptError(f"tool_choice names function {name!r}, but tools has {', '.join(map(repr, functions)) or 'none'}.")
    return _grammar({name: functions[name]}, False, xml)


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


def _grammar(functions: Mapping[str, Mapping[str, Any]], several: bool, xml: bool) -> StructuredOutput:
    lines = ['start: call ("\\n" call)*' if several else "start: call"]
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(functions))))
    for number, (name, schema) in enumerate(functions.items()):
        lines += (_xml_call if xml else _json_call)(number, name, schema)
    if any(_TEXT in line for line in lines):
        lines.append(_TEXT_RULE)
    return StructuredOutput("lark", "\n".join(lines) + "\n")


def _json_call(number: int, name: str, schema: Mapping[str, Any]) -> list[str]:
    opening = _quoted(f'<tool_call>\n{{"name": {_quoted(name)}, "arguments": ')
    closing = _quoted("}\n</tool_call>")
    return [
        f"call_{number}: {opening} arguments_{number} {closing}",
        f"arguments_{number}: %json {json.dumps(prepared(dict(schema), 'spaced'))}",
    ]


def _xml_call(number: int, name: str, schema: Mapping[str, Any]) -> list[str]:
    """Parameters in the schema's order. Of a string only its choices, if it has some, are enforced."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    parts, rules = [], []
    for index, (parameter, its) in enumerate(properties.items()):
        rule = f"value_{number}_{index}"
        opening = _quoted(f"<parameter={parameter}>\n")
        value = _xml_value(its, schema)
        part = f"{opening} {_TEXT}" if value is None else f"{opening} {rule} {_END_VALUE}"
        parts.append(part if parameter in required else f"({part})?")
        if value is not None:
            rules.append(f"{rule}: {value}")
    opening, closing = _quoted(f"<tool_call>\n<function={name}>\n"), _quoted("</function>\n</tool_call>")
    return [" ".join((f"call_{number}:", opening, *parts, closing)), *rules]


def _xml_value(schema: Any, whole: Mapping[str, Any]) -> str | None:
    """A rule's body; None: any text."""
    if may_be_string(schema):
        choices = schema.get("enum") if isinstance(schema, Mapping) else None
        return " | ".join(map(_quoted, choices)) if choices else None
    definitions = {name: whole[name] for name in ("$defs", "definitions") if name in whole}
    return f"%json {json.dumps(prepared({**schema, **definitions}, 'spaced'))}"


def _quoted(text: str) -> str:
    """As a JSON string, which is also how Lark writes one."""
    return json.dumps(text, ensure_ascii=False)
