"""A tool call as GLM-4.5V and later write it.

```
<tool_call>zoom
<arg_key>box</arg_key>
<arg_value>[1, 2, 3, 4]</arg_value>
<arg_key>note</arg_key>
<arg_value>any text, of several lines too</arg_value>
</tool_call>
```

Newlines between the tags may be missing. A value is text, and the function's schema says what else it is, as in xml_call.py.
"""

import json
import re

from sightline.stream.xml_call import CALL, END_CALL, Schemas, read_value

_NAME = re.compile(r"\s*([^\s<>{}\"]+)\s*")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<\n]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_ARG_KEY = "<arg_key>"


class GlmCall:
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
        self._read_whole(text[len(CALL) :] if end < 0 else text[len(CALL) : end], cut=end < 0)
        self.complete, self.end = not self.failed, len(text) if end < 0 else end + len(END_CALL)

    def arguments_so_far(self, text: str) -> None:
        """Nothing is certain before the end: a later value of the same name would replace an earlier one."""

    def _read_whole(self, inner: str, cut: bool) -> None:
        """`cut`: the answer ended without the closing tag, which a stop string takes with it. Whether more arguments were to
        come is not written then: such a call counts if it has all that the function requires."""
        opened = _NAME.match(inner)
        if opened is None:
            self.failed = True
            return
        self.name, at, found = opened.group(1), opened.end(), {}
        schema = self._schemas.get(self.name, {})
        properties = schema.get("properties", {})
        while (argument := _ARGUMENT.match(inner, at)) is not None:
            name = argument.group(1).strip()
            found[name] = read_value(argument.group(2), properties.get(name))
            at = argument.end()
        lacking = set(schema.get("required", ())) - found.keys() if self.name in self._schemas else {self.name}
        self.failed = at != len(inner) or (cut and bool(lacking))
        self.arguments = json.dumps(found, ensure_ascii=False)


def _may_begin(text: str) -> bool:
    """Whether what follows the tag can still be a call."""
    head, bracket, tail = text.partition("<")
    if bracket and not head.strip():
        return False
    named = not head.strip() or _NAME.fullmatch(head) is not None
    tag = bracket + tail
    return named and any(tag.startswith(wanted) or wanted.startswith(tag) for wanted in (_ARG_KEY, END_CALL))
