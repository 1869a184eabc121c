"""Answers to plain prompts, piece by piece or whole, in OpenAI's shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from sightline.engine.messages import UpdateHead
from sightline.prompt.tokenizer import Tokenizer
from sightline.server.call import Call
from sightline.server.chat_reply import DONE, event
from sightline.server.responses import Completion, CompletionChoice, CompletionLogprobs, FinishReason
from sightline.server.token_text import completion_logprobs, token_text
from sightline.types import TokenLogprob

_encoder = msgspec.json.Encoder()


@dataclass
class _Answer:
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    shown: int = 0  # characters of the tokens whose log-probabilities went out
    reason: FinishReason | None = None
    begun: bool = False


class CompletionReply:
    def __init__(
        self, call: Call, model: str, tokenizer: Tokenizer, top_logprobs: int | None, include_usage: bool, timings: bool
    ) -> None:
        """`top_logprobs` is None where no log-probabilities are asked for."""
        self._call, self._model, self._tokenizer = call, model, tokenizer
        self._top, self._include_usage, self._timings = top_logprobs, include_usage, timings
        self._answers = [_Answer() for prompt in call.prompts for _ in range(prompt.answers)]

    def take(self, batch: Sequence[tuple[int, UpdateHead]]) -> None:
        for index, update in batch:
            answer = self._answers[index]
            answer.text.append(update.text)
            answer.logprobs += update.logprobs
            self._note_end(index, update)

    def body(self) -> bytes:
        choices = [
            CompletionChoice(
                index=index,
                text="".join(answer.text),
                logprobs=self._shown(answer, answer.logprobs),
                finish_reason=answer.reason,
            )
            for index, answer in enumerate(self._answers)
        ]
        message = self._message(choices)
        message.usage = self._call.usage()
        message.metadata = self._call.metadata() if self._timings else UNSET
        return _encoder.encode(message)

    def events(self, batch: Sequence[tuple[int, UpdateHead]]) -> bytes:
        events = []
        for index, update in batch:
            answer = self._answers[index]
            answer.text.append(update.text)
            self._note_end(index, update)
            if not (update.text or update.logprobs or answer.reason is not None or not answer.begun):
                continue
            answer.begun = True
            logprobs = self._shown(answer, list(update.logprobs))
            choice = CompletionChoice(index=index, text=update.text, logprobs=logprobs, finish_reason=answer.reason)
            message = self._message([choice])
            if answer.reason is not None and self._timings and all(other.reason is not None for other in self._answers):
                message.metadata = self._call.metadata()
            events.append(event(message))
        return b"".join(events)

    def closing(self) -> bytes:
        if not self._include_usage:
            return DONE
        message = self._message([])
        message.usage = self._call.usage()
        return event(message) + DONE

    def _message(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self._call.id,
            created=self._call.created,
            model=self._model,
            choices=choices,
            usage=None if self._include_usage else UNSET,
        )

    def _shown(self, answer: _Answer, logprobs: list[TokenLogprob]) -> CompletionLogprobs | None:
        if self._top is None:
            return None
        shown = completion_logprobs(self._tokenizer, logprobs, answer.shown, top=self._top > 0)
        answer.shown += sum(len(token_text(self._tokenizer, entry.token_id)) for entry in logprobs)
        return shown

    def _note_end(self, index: int, update: UpdateHead) -> None:
        if update.finish is not None:
            self._answers[index].reason = update.finish.reason
            self._call.reasons[index] = update.finish.reason

    def texts(self) -> list[str]:
        return ["".join(answer.text) for answer in self._answers]
