"""Answers to a chat, piece by piece or whole, in OpenAI's shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from sightline.engine.messages import UpdateHead
from sightline.prompt.tokenizer import Tokenizer
from sightline.server.call import Call
from sightline.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    FinishReason,
    FunctionCall,
    ToolCall,
)
from sightline.server.token_text import chat_logprobs
from sightline.stream.answer_parts import AnswerParser, ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from sightline.types import TokenLogprob

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(message: msgspec.Struct) -> bytes:
    return b"data: " + _encoder.encode(message) + b"\n\n"


@dataclass
class _Answer:
    """One choice as it grows."""

    parser: AnswerParser
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    begun: bool = False  # a chunk has gone out

    def take(self, update: UpdateHead) -> list[Delta]:
        deltas = self.parser.feed(update.text)
        if update.finish is not None:
            deltas += self.parser.finish()
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                self.content.append(delta.text)
            elif isinstance(delta, ReasoningDelta):
                self.reasoning.append(delta.text)
            else:
                self._take_call(delta)
        self.logprobs += update.logprobs
        if update.finish is not None:
            self.reason = "tool_calls" if self.calls and update.finish.reason == "stop" else update.finish.reason
        return deltas

    def _take_call(self, delta: ToolCallDelta) -> None:
        if delta.index == len(self.calls):
            assert delta.id is not None and delta.name is not None
            self.calls.append(ToolCall(id=delta.id, type="function", function=FunctionCall(name=delta.name)))
        self.calls[delta.index].function.arguments += delta.arguments


class ChatReply:
    def __init__(
        self,
        call: Call,
        model: str,
        tokenizer: Tokenizer,
        new_parser: Callable[[], AnswerParser],
        logprobs: bool,
        include_usage: bool,
        timings: bool,
    ) -> None:
        self._call, self._model, self._tokenizer = call, model, tokenizer
        self._logprobs, self._include_usage, self._timings = logprobs, include_usage, timings
        count = sum(prompt.answers for prompt in call.prompts)
        self._answers = [_Answer(new_parser()) for _ in range(count)]

    def take(self, batch: Sequence[tuple[int, UpdateHead]]) -> None:
        """News of an answer that will be sent whole."""
        for index, update in batch:
            self._answers[index].take(update)
            self._note_end(index)

    def body(self) -> bytes:
        return _encoder.encode(
            ChatCompletion(
                id=self._call.id,
                created=self._call.created,
                model=self._model,
                choices=[self._choice(index, answer) for index, answer in enumerate(self._answers)],
                usage=self._call.usage(),
                metadata=self._call.metadata() if self._timings else UNSET,
            )
        )

    def _choice(self, index: int, answer: _Answer) -> ChatChoice:
        assert answer.reason is not None
        content = "".join(answer.content)
        return ChatChoice(
            index=index,
            message=ChatMessage(
                content=None if answer.calls and not content else content,
                reasoning_content="".join(answer.reasoning) if answer.reasoning else UNSET,
                tool_calls=answer.calls or UNSET,
            ),
            logprobs=self._shown(answer.logprobs),
            finish_reason=answer.reason,
        )

    def events(self, batch: Sequence[tuple[int, UpdateHead]]) -> bytes:
        """News of an answer that is streamed, as server-sent events."""
        return b"".join(event(chunk) for index, update in batch for chunk in self._chunks(index, update))

    def _chunks(self, index: int, update: UpdateHead) -> list[ChatChunk]:
        answer = self._answers[index]
        deltas = [_shown_delta(delta) for delta in answer.take(update)]
        self._note_end(index)
        if not deltas and (update.logprobs or answer.reason is not None or not answer.begun):
            # The first chunk comes with the first token, even where its text is held back: clients take times by it.
            deltas = [ChatDelta()] if answer.reason is not None and answer.begun else [ChatDelta(content="")]
        chunks = []
        for place, delta in enumerate(deltas):
            if not answer.begun:
                delta.role = "assistant"
                answer.begun = True
            last = place == len(deltas) - 1
            choice = ChatChunkChoice(
                index=index,
                delta=delta,
                logprobs=self._shown(list(update.logprobs)) if last else None,
                finish_reason=answer.reason if last else None,
            )
            chunks.append(self._chunk([choice]))
        if answer.reason is not None and self._timings and all(other.reason is not None for other in self._answers):
            chunks[-1].metadata = self._call.metadata()
        return chunks

    def closing(self) -> bytes:
        if not self._include_usage:
            return DONE
        chunk = self._chunk([])
        chunk.usage = self._call.usage()
        return event(chunk) + DONE

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._call.id,
            created=self._call.created,
            model=self._model,
            choices=choices,
            usage=None if self._include_usage else UNSET,
        )

    def _shown(self, logprobs: list[TokenLogprob]) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, logprobs) if self._logprobs else None

    def _note_end(self, index: int) -> None:
        reason = self._answers[index].reason
        if reason is not None:
            self._call.reasons[index] = reason

    def texts(self) -> list[str]:
        """What was answered, for a log with content."""
        return ["".join(answer.content) for answer in self._answers]


def _shown_delta(delta: Delta) -> ChatDelta:
    if isinstance(delta, ContentDelta):
        return ChatDelta(content=delta.text)
    if isinstance(delta, ReasoningDelta):
        return ChatDelta(reasoning_content=delta.text)
    return ChatDelta(
        tool_calls=[
            ToolCall(
                index=delta.index,
                id=delta.id if delta.id is not None else UNSET,
                type="function" if delta.id is not None else UNSET,
                function=FunctionCall(name=delta.name if delta.name is not None else UNSET, arguments=delta.arguments),
            )
        ]
    )
