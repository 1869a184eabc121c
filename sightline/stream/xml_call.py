"""A tool call as Qwen3.5 writes it, and what its values mean.

```
<tool_call>
<function=zoom>
<parameter=box>
[1, 2, 3, 4]
</parameter>
<parameter=note>
any text, of several lines too
</parameter>
</function>
</tool_call>
```

A value is text. What else it is the function's schema says: a parameter that may be a string is taken as it stands, another one
is JSON, or True, False or None as templates write them; what is neither stays text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

CALL, END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_END_FUNCTION = re.compile(r"\s*</function>\s*")
_NAMES = {"True": True, "False": False, "None": None}

Schemas = Mapping[str, Mapping[str, Any]]  # of each function's arguments


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}


class XmlCall:
    """A call while it is read. Positions are in the text that begins with its tag. It is given out when it is complete."""

    streamed: int | None = None
    read_to = len(CALL)

    def __init__(self, schemas: Schemas) -> None:
        self.complete = False
        self.failed = False
        self.end = 0  # of the whole call, when it is complete
        self.name: str | None = None
        self.arguments = "{}"  # of a complete call
        self._schemas = schemas

    def read(self, text: str, last: bool) -> None:
        """`text` is what it was before and more."""
        end = text.find(END_CALL)
        if end < 0 and not last:
            self.failed = not _may_begin(text[len(CALL) :])
            return
        self._read_whole(text[len(CALL) :] if end < 0 else text[len(CALL) : end])
        self.complete, self.end = not self.failed, len(text) if end < 0 else end + len(END_CALL)

    def arguments_so_far(self, text: str) -> None:
        """Nothing is certain before the end: a later value of the same name would replace an earlier one."""

    def _read_whole(self, inner: str) -> None:
        opened = _FUNCTION.match(inner)
        if opened is None:
            self.failed = True
            return
        self.name, at, found = opened.group(1), opened.end(), {}
        properties = self._schemas.get(self.name, {}).get("properties", {})
        while (value := _PARAMETER.match(inner, at)) is not None:
            found[value.group(1)] = read_value(value.group(2), properties.get(value.group(1)))
            at = value.end()
        closed = _END_FUNCTION.match(inner, at)
        self.failed = closed is None or closed.end() != len(inner)
        self.arguments = json.dumps(found, ensure_ascii=False)


def _may_begin(text: str) -> bool:
    """Whether what follows the tag can still be a call."""
    text, wanted = text.lstrip(), "<function="
    return text.startswith(wanted) or wanted.startswith(text)


def read_value(text: str, schema: Any) -> Any:
    if may_be_string(schema):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return _NAMES.get(text.strip(), text)


def may_be_string(schema: Any) -> bool:
    """Whether a schema allows any string at all; one that does not say what it allows does."""
    if not isinstance(schema, Mapping):
        return True
    if isinstance(options := schema.get("anyOf", schema.get("oneOf")), Sequence):
        return any(may_be_string(option) for option in options)
    if isinstance(values := schema.get("enum"), Sequence):
        return all(isinstance(value, str) for value in values)
    kind = schema.get("type", "string" if "$ref" not in schema else None)
    return "string" in kind if isinstance(kind, list) else kind == "string"
