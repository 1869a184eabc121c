"""The form of an answer that must call tools, as a grammar: what `AnswerParser` reads as calls, and nothing else."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.errors import PromptError
from sightline.grammar.schema import prepared
from sightline.stream.xml_call import may_be_string
from sightline.types import CallForm, StructuredOutput

ToolChoice = str | Mapping[str, Any]
_TEXT = "text_value"


@dataclass(frozen=True)
class _Tags:
    """What stands around a call and its arguments where they are no JSON. `%s` are names."""

    call: str
    argument: str
    end_argument: str
    end_call: str

    @property
    def text_rule(self) -> str:
        """A text up to the first end, and that."""
        end = self.end_argument.replace("\n", r"\n").replace("/", r"\/")
        return f"{_TEXT}[lazy]: /(?s:.*){end}/"


_TAGS = {
    "xml": _Tags("<tool_call>\n<function=%s>\n", "<parameter=%s>\n", "\n</parameter>\n", "</function>\n</tool_call>"),
    "glm": _Tags("<tool_call>%s\n", "<arg_key>%s</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"),
}


def tool_call_grammar(
    tools: Sequence[Mapping[str, Any]], choice: ToolChoice, parallel: bool = True, form: CallForm = "json"
) -> StructuredOutput | None:
    """What `tool_choice` asks of an answer; None where it is free to call or not. `form`: how calls are written.

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
        return _grammar(functions, parallel, form)
    name = _chosen_name(choice)
    if name not in functions:
        raise PromptError(f"tool_choice names function {name!r}, but tools has {', '.join(map(repr, functions)) or 'none'}.")
    return _grammar({name: functions[name]}, False, form)


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


def _grammar(functions: Mapping[str, Mapping[str, Any]], several: bool, form: CallForm) -> StructuredOutput:
    lines = ['start: call ("\\n" call)*' if several else "start: call"]
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(functions))))
    for number, (name, schema) in enumerate(functions.items()):
        lines += _json_call(number, name, schema) if form == "json" else _tagged_call(_TAGS[form], number, name, schema)
    if form != "json" and any(_TEXT in line for line in lines):
        lines.append(_TAGS[form].text_rule)
    return StructuredOutput("lark", "\n".join(lines) + "\n")


def _json_call(number: int, name: str, schema: Mapping[str, Any]) -> list[str]:
    opening = _quoted(f'<tool_call>\n{{"name": {_quoted(name)}, "arguments": ')
    closing = _quoted("}\n</tool_call>")
    return [
        f"call_{number}: {opening} arguments_{number} {closing}",
        f"arguments_{number}: %json {json.dumps(prepared(dict(schema), 'spaced'))}",
    ]


def _tagged_call(tags: _Tags, number: int, name: str, schema: Mapping[str, Any]) -> list[str]:
    """Parameters in the schema's order. Of a string only its choices, if it has some, are enforced."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    parts, rules = [], []
    for index, (parameter, its) in enumerate(properties.items()):
        rule = f"value_{number}_{index}"
        opening = _quoted(tags.argument % parameter)
        value = _tagged_value(its, schema)
        part = f"{opening} {_TEXT}" if value is None else f"{opening} {rule} {_quoted(tags.end_argument)}"
        parts.append(part if parameter in required else f"({part})?")
        if value is not None:
            rules.append(f"{rule}: {value}")
    opening, closing = _quoted(tags.call % name), _quoted(tags.end_call)
    return [" ".join((f"call_{number}:", opening, *parts, closing)), *rules]


def _tagged_value(schema: Any, whole: Mapping[str, Any]) -> str | None:
    """A rule's body; None: any text."""
    if may_be_string(schema):
        choices = schema.get("enum") if isinstance(schema, Mapping) else None
        return " | ".join(map(_quoted, choices)) if choices else None
    definitions = {name: whole[name] for name in ("$defs", "definitions") if name in whole}
    return f"%json {json.dumps(prepared({**schema, **definitions}, 'spaced'))}"


def _quoted(text: str) -> str:
    """As a JSON string, which is also how Lark writes one."""
    return json.dumps(text, ensure_ascii=False)
