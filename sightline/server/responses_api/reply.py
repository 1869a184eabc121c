"""Answers as OpenAI's newer API tells them.

```
response.created, response.in_progress
    response.output_item.added                              for each item: thoughts, a message, a call
        response.content_part.added                         of thoughts and messages, which have one part each
            response.reasoning_text | output_text | function_call_arguments .delta …, .done
        response.content_part.done
    response.output_item.done
response.completed, incomplete or failed
```
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from sightline.engine.messages import UpdateHead
from sightline.prompt.tokenizer import Tokenizer
from sightline.server.answer_blocks import AnswerBlocks, Block, Change
from sightline.server.call import Call
from sightline.server.errors import ApiError
from sightline.server.reply import named_event
from sightline.server.responses import TokenLogprob as ShownLogprob
from sightline.server.responses_api.output import (
    CallItem,
    IncompleteDetails,
    InputTokensDetails,
    Item,
    MessageItem,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseUsage,
    Status,
)
from sightline.server.token_text import chat_logprobs
from sightline.stream.answer_parts import AnswerParser
from sightline.types import TokenLogprob

_encoder = msgspec.json.Encoder()
_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}


class ResponsesReply:
    def __init__(
        self,
        call: Call,
        new_parser: Callable[[], AnswerParser],
        tokenizer: Tokenizer,
        response: Response,
        logprobs: bool,
        timings: bool,
    ) -> None:
        """`response` is the answer before it has begun."""
        self._call, self._tokenizer, self._response = call, tokenizer, response
        self._logprobs, self._timings = logprobs, timings
        self._answer = AnswerBlocks(call, new_parser())
        self._events = 0  # that went out

    def take(self, batch: Sequence[tuple[int, UpdateHead]]) -> None:
        self._answer.take(batch)

    def body(self) -> bytes:
        return _encoder.encode(self._ended())

    def texts(self) -> list[str]:
        return ["".join(block.text for block in self._answer.blocks if block.kind == "text")]

    # ---- A stream

    def events(self, batch: Sequence[tuple[int, UpdateHead]]) -> bytes:
        begun = b"" if self._events else self._event("created") + self._event("in_progress")
        return begun + b"".join(self._change(change) for change in self._answer.take(batch))

    def closing(self) -> bytes:
        return self._event(self._ended().status)

    def failure(self, error: ApiError) -> bytes:
        self._response.status = "failed"
        code = "server_error" if error.status >= 500 else error.code or "invalid_prompt"
        self._response.error = ResponseError(code=code, message=error.message)
        return self._event("failed")

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        if not fields:
            fields = {"response": self._response}
        made = ResponseEvent(type=f"response.{kind}", sequence_number=self._events, **fields)
        self._events += 1
        return named_event(made.type, made)

    def _change(self, change: Change) -> bytes:
        block = change.block
        output: dict[str, Any] = {"output_index": block.number}
        inside = {**output, "item_id": self._id(block)}
        if block.kind != "call":
            inside["content_index"] = 0
        if change.what == "open":
            added = self._event("output_item.added", **output, item=self._item(block, "in_progress"))
            if block.kind == "call":
                return added
            return added + self._event("content_part.added", **inside, part=_part(block, "", []))
        if change.what == "more":
            if block.kind == "text":
                return self._event("output_text.delta", **inside, delta=change.text, logprobs=self._shown(change.logprobs))
            name = "reasoning_text" if block.kind == "reasoning" else "function_call_arguments"
            return self._event(f"{name}.delta", **inside, delta=change.text)
        logprobs = self._shown(block.logprobs)
        if block.kind == "call":
            ended = self._event("function_call_arguments.done", **inside, name=block.name, arguments=block.text)
        elif block.kind == "text":
            ended = self._event("output_text.done", **inside, text=block.text, logprobs=logprobs)
        else:
            ended = self._event("reasoning_text.done", **inside, text=block.text)
        if block.kind != "call":
            ended += self._event("content_part.done", **inside, part=_part(block, block.text, logprobs))
        return ended + self._event("output_item.done", **output, item=self._item(block))

    # ---- What has been said

    def _ended(self) -> Response:
        response, usage = self._response, self._call.usage()
        response.status = "incomplete" if self._answer.reason == "length" else "completed"
        response.completed_at = int(time.time())
        if response.status == "incomplete":
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        response.output = [self._item(block) for block in self._answer.blocks]
        details = usage.prompt_tokens_details
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=details.cached_tokens, image_tokens=details.image_tokens, video_tokens=details.video_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
            total_tokens=usage.total_tokens,
        )
        response.timings = self._call.metadata() if self._timings else UNSET
        return response

    def _item(self, block: Block, status: Status | None = None) -> Item:
        last = block is self._answer.blocks[-1]
        status = status or ("incomplete" if last and self._answer.reason == "length" else "completed")
        text, name = ("" if status == "in_progress" else block.text), self._id(block)
        if block.kind == "call":
            return CallItem(id=name, status=status, call_id=block.id, name=block.name, arguments=text)
        if block.kind == "reasoning":
            return ReasoningItem(id=name, status=status, content=[ReasoningText(text=text)] if text else [])
        content = [OutputText(text=text, logprobs=self._shown(block.logprobs))] if status != "in_progress" else []
        return MessageItem(id=name, status=status, content=content)

    def _id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._call.id.partition('_')[2]}{block.number:02x}"

    def _shown(self, logprobs: Sequence[TokenLogprob]) -> list[ShownLogprob]:
        return chat_logprobs(self._tokenizer, list(logprobs)).content if self._logprobs else []


def _part(block: Block, text: str, logprobs: list[ShownLogprob]) -> OutputText | ReasoningText:
    return ReasoningText(text=text) if block.kind == "reasoning" else OutputText(text=text, logprobs=logprobs)
