"""An answer's text taken apart as it comes: content, reasoning, tool calls.

```
<think>                                    reasoning, at the beginning only; some templates write this tag themselves
…
</think>

Let me look.                               content
<tool_call>                                a call, as Qwen and Hermes write it; any number of them, anywhere in the content
{"name": "zoom", "arguments": {"x": 3}}
</tool_call>
```

A call is `<tool_call>`, a JSON object with a name and (if any) arguments that are an object, and `</tool_call>` or the end of
the answer; or, of models that write it so (`call`), what xml_call.py or glm_call.py describes. Whatever else follows
`<tool_call>` is content, the tag too. So that this holds for a stream, a call is given out when it is complete; only where a
grammar makes sure of its form (`forced_calls`) do arguments go out while they are written.

Dropped are the tags, newlines on both sides of them around reasoning, and white space of content before the first and after the
last text if calls are there. All else comes out, and the same however the text was cut.
"""

import json
import uuid
from dataclasses import dataclass, replace

from sightline.stream.call_forms import CallReader
from sightline.stream.glm_call import GlmCall
from sightline.stream.json_object_scanner import JsonObjectScanner
from sightline.stream.xml_call import XmlCall
from sightline.types import ToolCall

_THINK, _END_THINK = "<think>", "</think>"
_CALL, END_CALL = "<tool_call>", "</tool_call>"
_SPACE = " \t\n\r"  # between the tags and the object


@dataclass(frozen=True)
class ContentDelta:
    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True)
class ToolCallDelta:
    """The first of a call has id and name and no arguments; the others have None there and pieces of the arguments."""

    index: int  # which call of the answer
    id: str | None
    name: str | None
    arguments: str  # a piece of the JSON text of the arguments


Delta = ContentDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True)
class AnswerParts:
    """A whole answer taken apart."""

    content: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class Calls:
    """Whether an answer may have calls, and of models that write them otherwise than as JSON, what reads one."""

    allowed: bool
    call: CallReader | None = None


def parts_of(text: str, calls_of: Calls, starts_in_reasoning: bool) -> AnswerParts:
    parser = AnswerParser(tools=calls_of.allowed, reasoning=True, starts_in_reasoning=starts_in_reasoning, call=calls_of.call)
    deltas = [*parser.feed(text), *parser.finish()]
    reasoning = [delta.text for delta in deltas if isinstance(delta, ReasoningDelta)]
    calls: list[ToolCall] = []
    for delta in deltas:
        if not isinstance(delta, ToolCallDelta):
            continue
        if delta.index == len(calls):
            assert delta.id is not None and delta.name is not None
            calls.append(ToolCall(delta.id, delta.name, ""))
        calls[delta.index] = replace(calls[delta.index], arguments=calls[delta.index].arguments + delta.arguments)
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    return AnswerParts(content, "".join(reasoning) if reasoning else None, tuple(calls))


class AnswerParser:
    """`feed` gives what is certain with more text, `finish` what was held back for text that did not come."""

    def __init__(
        self,
        tools: bool,
        reasoning: bool,
        starts_in_reasoning: bool = False,
        forced_calls: bool = False,
        call: CallReader | None = None,
    ) -> None:
        """`starts_in_reasoning`: the prompt ends with an open think block; counts only with `reasoning`. `call`: makes what
        reads one call, where calls are not JSON."""
        self._tools, self._forced, self._new_call = tools, forced_calls, call or _Call
        self._buffer = ""  # text that is not given out, from where the state began on
        self._deltas: list[Delta] = []
        self._starts_in_reasoning = starts_in_reasoning
        self._state = self._start if reasoning else self._content
        self._skip_newlines = False  # at the beginning of reasoning and of what follows it
        self._space = ""  # white space of content, until it is known whether text follows
        self._said = False  # content other than white space
        self._calls = 0
        self._call: _Call | XmlCall | GlmCall | None = None

    @property
    def past_reasoning(self) -> bool:
        """Whether what comes from now on is content or calls."""
        return self._state not in (self._start, self._reasoning)

    def feed(self, text: str) -> list[Delta]:
        self._buffer += text
        return self._run(last=False)

    def finish(self) -> list[Delta]:
        deltas = self._run(last=True)
        space, self._space = self._space, ""
        return [*deltas, ContentDelta(space)] if space and not self._calls else deltas

    def _run(self, last: bool) -> list[Delta]:
        """Each state takes what it can from the buffer, and says whether there may be more to do with the rest."""
        while self._state(last):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    # ---- States

    def _start(self, last: bool) -> bool:
        """Nothing but white space has come."""
        text = self._buffer.lstrip()
        if len(text) < len(_THINK) and _THINK.startswith(text) and not last:
            return False
        opened = text.startswith(_THINK)
        if opened:
            self._buffer = text[len(_THINK) :]
        thinks = opened or self._starts_in_reasoning
        self._state, self._skip_newlines = (self._reasoning, True) if thinks else (self._content, False)
        return True

    def _reasoning(self, last: bool) -> bool:
        self._drop_newlines()
        end = self._buffer.find(_END_THINK)
        if end >= 0:
            self._reason(self._buffer[:end].rstrip("\n"))
            self._buffer = self._buffer[end + len(_END_THINK) :]
            self._state, self._skip_newlines = self._content, True
            return True
        sure = len(self._buffer)
        if not last:
            sure = len(self._buffer[: sure - _begun(self._buffer, _END_THINK)].rstrip("\n"))
        self._reason(self._buffer[:sure])
        self._buffer = self._buffer[sure:]
        return False

    def _content(self, last: bool) -> bool:
        self._drop_newlines()
        if not self._tools:
            self._say(self._buffer)
            self._buffer = ""
            return False
        tag = self._buffer.find(_CALL)
        if tag >= 0:
            self._say(self._buffer[:tag])
            self._buffer = self._buffer[tag:]
            self._state, self._call = self._in_call, self._new_call()
            return True
        sure = len(self._buffer) - (0 if last else _begun(self._buffer, _CALL))
        self._say(self._buffer[:sure])
        self._buffer = self._buffer[sure:]
        return False

    def _in_call(self, last: bool) -> bool:
        """The buffer begins with the tag."""
        call = self._call
        assert call is not None
        call.read(self._buffer, last)
        if self._forced:
            self._stream_arguments(call)
        if not (call.complete or call.failed):
            return False
        if call.complete:
            if call.streamed is None:
                self._give(call.name or "", call.arguments)
            rest = call.end
        elif call.streamed is not None:
            rest = call.read_to
        else:  # the tag is content, and what follows it may hold another call
            self._say(_CALL)
            rest = len(_CALL)
        self._buffer = self._buffer[rest:]
        self._state, self._call = self._content, None
        return True

    # ---- Giving out

    def _give(self, name: str, arguments: str) -> None:
        """The beginning of a call."""
        self._deltas.append(ToolCallDelta(self._calls, f"call_{uuid.uuid4().hex[:24]}", name, ""))
        self._calls += 1
        if arguments:
            self._deltas.append(ToolCallDelta(self._calls - 1, None, None, arguments))

    def _stream_arguments(self, call: "_Call | XmlCall | GlmCall") -> None:
        """What of the arguments is certain and was not given out."""
        span = call.arguments_so_far(self._buffer)
        if span is None or call.name is None:
            return
        if call.streamed is None:
            self._give(call.name, self._buffer[span[0] : span[1]])
        elif call.streamed < span[1]:
            self._deltas.append(ToolCallDelta(self._calls - 1, None, None, self._buffer[call.streamed : span[1]]))
        call.streamed = span[1]

    def _drop_newlines(self) -> None:
        if self._skip_newlines:
            self._buffer = self._buffer.lstrip("\n")
            self._skip_newlines = not self._buffer

    def _reason(self, text: str) -> None:
        if text:
            self._deltas.append(ReasoningDelta(text))

    def _say(self, text: str) -> None:
        if self._tools:  # white space waits for text, or for a call
            text = self._space + text
            bare = text.rstrip()
            self._space = text[len(bare) :]
            text = bare.lstrip() if self._calls and not self._said else bare
            self._said = self._said or bool(text)
        if text:
            self._deltas.append(ContentDelta(text))


class _Call:
    """A call while it is read. Positions are in the text that begins with its tag."""

    def __init__(self) -> None:
        self.complete = False
        self.failed = False
        self.end = 0  # of the whole call, when it is complete
        self.name: str | None = None
        self.arguments = "{}"  # of a complete call
        self.streamed: int | None = None  # arguments up to here are given out
        self._object: JsonObjectScanner | None = None

    def read(self, text: str, last: bool) -> None:
        """`text` is what it was before and more."""
        if self._object is None:
            start = len(text) - len(text[len(_CALL) :].lstrip(_SPACE))
            if start == len(text):
                self.failed = last
                return
            self._object = JsonObjectScanner(start)
        self._object.scan(text)
        self._read_name(text)
        self.failed = self.failed or self._object.failed or (last and not self._object.done)
        if self._object.done and not self.failed:
            self._read_end(text, last)

    def _read_name(self, text: str) -> None:
        assert self._object is not None
        if self.name is None and (span := self._object.members.get("name")) is not None:
            name = json.loads(text[slice(*span)])
            if isinstance(name, str) and name and not any("\ud800" <= char <= "\udfff" for char in name):
                self.name = name
            else:
                self.failed = True

    def _read_end(self, text: str, last: bool) -> None:
        assert self._object is not None
        if (span := self._object.members.get("arguments")) is not None and text[slice(*span)] != "null":
            self.arguments = text[slice(*span)]
        if self.name is None or not self.arguments.startswith("{"):
            self.failed = True
            return
        rest = text[self._object.at :].lstrip(_SPACE)
        if rest.startswith(END_CALL):
            self.complete, self.end = True, len(text) - len(rest) + len(END_CALL)
        elif not END_CALL.startswith(rest):
            self.failed = True
        elif last:
            self.complete, self.end = True, len(text)

    @property
    def read_to(self) -> int:
        return self._object.at if self._object is not None else len(_CALL)

    def arguments_so_far(self, text: str) -> tuple[int, int] | None:
        """Where the arguments stand, as far as they are read."""
        if self._object is None:
            return None
        span = self._object.members.get("arguments")
        if span is None and self._object.open_member is not None and self._object.open_member[0] == "arguments":
            span = self._object.open_member[1], self._object.at
        return span if span is not None and text[span[0]] == "{" else None


def _begun(text: str, tag: str) -> int:
    """How many characters at the end of the text are the beginning of a tag that is not complete."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
