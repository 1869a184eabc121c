"""Answers to a chat, piece by piece or whole, in OpenAI's shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from sightline.engine.messages import UpdateHead
from sightline.server.call import Call
from sightline.server.errors import ApiError
from sightline.server.reply import DONE, ReplyOptions, event, failure_event
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

_encoder = msgspec.json.Encoder()


@dataclass
class ChatChoiceState:
    """One choice as it grows."""

    parser: AnswerParser
    beginning: str = ""  # what the answer repeats before its own text
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    matched_stop: int | str | None = None
    thinks: bool = True  # until content or a call has begun
    reasoning_tokens: int = 0  # up to the end of the thoughts
    begun: bool = False  # a chunk has gone out

    def take(self, update: UpdateHead) -> list[Delta]:
        deltas: list[Delta] = [ContentDelta(self.beginning)] if self.beginning else []
        self.beginning = ""
        deltas += self.parser.feed(update.text)
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
        self.token_ids += update.token_ids
        if self.thinks:
            self._count_thoughts(len(update.token_ids))
        if update.finish is not None:
            self.matched_stop = update.finish.matched_stop
            self.reason = "tool_calls" if self.calls and update.finish.finish_reason == "stop" else update.finish.finish_reason
        return deltas

    def _count_thoughts(self, tokens: int) -> None:
        self.reasoning_tokens += tokens
        if self.parser.past_reasoning:
            self.thinks = False
            self.reasoning_tokens = self.reasoning_tokens if self.reasoning else 0

    def _take_call(self, delta: ToolCallDelta) -> None:
        if delta.index == len(self.calls):
            assert delta.id is not None and delta.name is not None
            self.calls.append(ToolCall(id=delta.id, type="function", function=FunctionCall(name=delta.name)))
        self.calls[delta.index].function.arguments += delta.arguments


class ChatReply:
    def __init__(
        self, call: Call, options: ReplyOptions, new_parser: Callable[[], AnswerParser], logprobs: bool, beginning: str = ""
    ) -> None:
        """`beginning` is what answers repeat of the message that they go on with."""
        self._call, self._options, self._logprobs = call, options, logprobs
        count = sum(prompt.answers for prompt in call.prompts)
        self._answers = [ChatChoiceState(new_parser(), beginning) for _ in range(count)]

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
                model=self._options.model,
                choices=[self._choice(index, answer) for index, answer in enumerate(self._answers)],
                usage=self._call.usage(),
                prompt_token_ids=ids[0] if (ids := self._options.prompt_ids) is not None else UNSET,
                metadata=self._call.metadata() if self._options.timings else UNSET,
            )
        )

    def _choice(self, index: int, answer: ChatChoiceState) -> ChatChoice:
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
            matched_stop=answer.matched_stop,
            token_ids=answer.token_ids if self._options.prompt_ids is not None else UNSET,
        )

    def events(self, batch: Sequence[tuple[int, UpdateHead]]) -> bytes:
        """News of an answer that is streamed, as server-sent events."""
        return b"".join(event(chunk) for index, update in batch for chunk in self._chunks(index, update))

    def _chunks(self, index: int, update: UpdateHead) -> list[ChatChunk]:
        answer = self._answers[index]
        deltas = [_shown_delta(delta) for delta in answer.take(update)]
        self._note_end(index)
        ids = self._options.prompt_ids
        first = not any(other.begun for other in self._answers)
        told = bool(update.logprobs) or (self._options.tells_tokens and bool(update.token_ids))
        if not deltas and (told or answer.reason is not None or not answer.begun):
            # The first chunk comes with the first token, even where its text is held back: clients take times by it.
            deltas = [ChatDelta()] if answer.reason is not None and answer.begun else [ChatDelta(content="")]
        chunks = []
        for position, delta in enumerate(deltas):
            if not answer.begun:
                delta.role = "assistant"
                answer.begun = True
            last = position == len(deltas) - 1
            choice = ChatChunkChoice(
                index=index,
                delta=delta,
                logprobs=self._shown(list(update.logprobs)) if last else None,
                finish_reason=answer.reason if last else None,
                token_ids=list(update.token_ids) if last and ids is not None else UNSET,
            )
            chunks.append(self._chunk([choice]))
        if chunks and first and ids is not None:
            chunks[0].prompt_token_ids = ids[0]
        if answer.reason is not None:
            chunks[-1].choices[0].matched_stop = answer.matched_stop
        if answer.reason is not None and self._options.timings and all(other.reason is not None for other in self._answers):
            chunks[-1].metadata = self._call.metadata()
        return chunks

    def closing(self) -> bytes:
        if not self._options.last_usage:
            return DONE
        chunk = self._chunk([])
        chunk.usage = self._call.usage()
        return event(chunk) + DONE

    def failure(self, error: ApiError) -> bytes:
        return failure_event(error)

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        options = self._options
        return ChatChunk(
            id=self._call.id,
            created=self._call.created,
            model=options.model,
            choices=choices,
            usage=self._call.usage() if options.usage_so_far else None if options.last_usage else UNSET,
        )

    def _shown(self, logprobs: list[TokenLogprob]) -> ChatLogprobs | None:
        return chat_logprobs(self._options.tokenizer, logprobs) if self._logprobs else None

    def _note_end(self, index: int) -> None:
        answer = self._answers[index]
        if answer.reason is not None:
            self._call.reasons[index] = answer.reason
            self._call.reasoning_tokens += answer.reasoning_tokens

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
