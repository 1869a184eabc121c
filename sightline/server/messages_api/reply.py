"""Answers as Anthropic's API tells them.

```
message_start
    content_block_start, content_block_delta …, content_block_stop      for each block: thoughts, text, a call
message_delta                                                           why it ended, and the usage
message_stop                                                            or error
```
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from sightline.engine.messages import UpdateHead
from sightline.server.answer_blocks import AnswerBlocks, Change
from sightline.server.answer_blocks import Block as AnswerBlock
from sightline.server.call import Call
from sightline.server.errors import ANTHROPIC, ApiError
from sightline.server.messages_api.output import (
    Block,
    Delta,
    Message,
    MessageEvent,
    MessageUsage,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from sightline.server.reply import named_event
from sightline.stream.answer_parts import AnswerParser

_encoder = msgspec.json.Encoder()


class MessagesReply:
    def __init__(self, call: Call, model: str, new_parser: Callable[[], AnswerParser], timings: bool) -> None:
        self._call, self._model, self._timings = call, model, timings
        self._answer = AnswerBlocks(call, new_parser())
        self._begun = False

    def take(self, batch: Sequence[tuple[int, UpdateHead]]) -> None:
        self._answer.take(batch)

    def body(self) -> bytes:
        message = self._message([_block(block) for block in self._answer.blocks])
        message.timings = self._call.metadata() if self._timings else UNSET
        return _encoder.encode(message)

    def texts(self) -> list[str]:
        return ["".join(block.text for block in self._answer.blocks if block.kind == "text")]

    # ---- A stream

    def events(self, batch: Sequence[tuple[int, UpdateHead]]) -> bytes:
        changes, begun = self._answer.take(batch), self._begun
        self._begun = True
        start = b"" if begun else _event("message_start", message=self._message([], begins=True))
        return start + b"".join(map(_change, changes))

    def closing(self) -> bytes:
        reason, sequence = self._end()
        delta = Delta(stop_reason=reason, stop_sequence=sequence)
        timings = self._call.metadata() if self._timings else UNSET
        return _event("message_delta", delta=delta, usage=self._usage(), timings=timings) + _event("message_stop")

    def failure(self, error: ApiError) -> bytes:
        return named_event("error", error.body(ANTHROPIC))

    # ---- What has been said

    def _message(self, content: list[Block], begins: bool = False) -> Message:
        reason, sequence = (None, None) if begins else self._end()
        return Message(
            id=self._call.id,
            model=self._model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage(),
        )

    def _end(self) -> tuple[StopReason, str | None]:
        reason, stop = self._answer.reason, self._answer.matched_stop
        if reason == "tool_calls":
            return "tool_use", None
        if reason == "length":
            return "max_tokens", None
        return ("stop_sequence", stop) if isinstance(stop, str) else ("end_turn", None)

    def _usage(self) -> MessageUsage:
        usage = self._call.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


def _event(name: Any, **fields: Any) -> bytes:
    return named_event(name, MessageEvent(type=name, **fields))


def _change(change: Change) -> bytes:
    block, index = change.block, change.block.number
    if change.what == "open":
        return _event("content_block_start", index=index, content_block=_block(block, begins=True))
    if change.what == "close":
        return _event("content_block_stop", index=index)
    if block.kind == "text":
        delta = Delta(type="text_delta", text=change.text)
    elif block.kind == "reasoning":
        delta = Delta(type="thinking_delta", thinking=change.text)
    else:
        delta = Delta(type="input_json_delta", partial_json=change.text)
    return _event("content_block_delta", index=index, delta=delta)


def _block(block: AnswerBlock, begins: bool = False) -> Block:
    text = "" if begins else block.text
    if block.kind == "text":
        return TextBlock(text=text)
    if block.kind == "reasoning":
        return ThinkingBlock(thinking=text)
    return ToolUseBlock(id=block.id.replace("call_", "toolu_", 1), name=block.name, input=_arguments(text))


def _arguments(text: str) -> dict[str, Any] | msgspec.Raw:
    """As the model wrote them, where it came to their end."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}
    return msgspec.Raw(text.encode())
