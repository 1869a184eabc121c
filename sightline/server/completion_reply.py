"""Answers to plain prompts, piece by piece or whole, in OpenAI's shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from sightline.engine.messages import UpdateHead
from sightline.server.call import Call
from sightline.server.errors import ApiError
from sightline.server.reply import DONE, ReplyOptions, event, failure_event
from sightline.server.responses import Completion, CompletionChoice, CompletionLogprobs, FinishReason
from sightline.server.token_text import completion_logprobs, token_text
from sightline.types import TokenLogprob

_encoder = msgspec.json.Encoder()


@dataclass
class _CompletionChoiceState:
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    shown: int = 0  # characters of the tokens whose log-probabilities went out
    reason: FinishReason | None = None
    matched_stop: int | str | None = None
    begun: bool = False
    beginning: str = ""  # the prompt, until it is repeated

    def take(self, update: UpdateHead) -> str:
        """The text to show that is new."""
        text, self.beginning = self.beginning + update.text, ""
        self.text.append(text)
        self.token_ids += update.token_ids
        return text


class CompletionReply:
    def __init__(self, call: Call, options: ReplyOptions, top_logprobs: int | None, beginnings: Sequence[str] = ()) -> None:
        """`top_logprobs` is None where no log-probabilities are asked for; `beginnings` are the prompts, where answers are to
        repeat them."""
        self._call, self._options, self._top = call, options, top_logprobs
        prompts = [number for number, prompt in enumerate(call.prompts) for _ in range(prompt.answers)]
        self._prompts = prompts  # of which prompt each answer is
        self._answers = [_CompletionChoiceState(beginning=beginnings[number] if beginnings else "") for number in prompts]

    def take(self, batch: Sequence[tuple[int, UpdateHead]]) -> None:
        for index, update in batch:
            answer = self._answers[index]
            answer.take(update)
            answer.logprobs += update.logprobs
            self._note_end(index, update)

    def body(self) -> bytes:
        ids = self._options.prompt_ids
        choices = [
            CompletionChoice(
                index=index,
                text="".join(answer.text),
                logprobs=self._shown(answer, answer.logprobs),
                finish_reason=answer.reason,
                matched_stop=answer.matched_stop,
                token_ids=answer.token_ids if ids is not None else UNSET,
                prompt_token_ids=ids[self._prompts[index]] if ids is not None else UNSET,
            )
            for index, answer in enumerate(self._answers)
        ]
        message = self._message(choices)
        message.usage = self._call.usage()
        message.metadata = self._call.metadata() if self._options.timings else UNSET
        return _encoder.encode(message)

    def events(self, batch: Sequence[tuple[int, UpdateHead]]) -> bytes:
        events, ids = [], self._options.prompt_ids
        for index, update in batch:
            answer = self._answers[index]
            text, first = answer.take(update), not answer.begun
            self._note_end(index, update)
            told = bool(update.logprobs) or (self._options.tells_tokens and bool(update.token_ids))
            if not (text or told or answer.reason is not None or not answer.begun):
                continue
            answer.begun = True
            logprobs = self._shown(answer, list(update.logprobs))
            choice = CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=answer.reason)
            if ids is not None:
                choice.token_ids = list(update.token_ids)
                choice.prompt_token_ids = ids[self._prompts[index]] if first else UNSET
            if answer.reason is not None:
                choice.matched_stop = answer.matched_stop
            message = self._message([choice])
            if answer.reason is not None and self._options.timings and all(other.reason is not None for other in self._answers):
                message.metadata = self._call.metadata()
            events.append(event(message))
        return b"".join(events)

    def closing(self) -> bytes:
        if not self._options.last_usage:
            return DONE
        message = self._message([])
        message.usage = self._call.usage()
        return event(message) + DONE

    def failure(self, error: ApiError) -> bytes:
        return failure_event(error)

    def _message(self, choices: list[CompletionChoice]) -> Completion:
        options = self._options
        return Completion(
            id=self._call.id,
            created=self._call.created,
            model=options.model,
            choices=choices,
            usage=self._call.usage() if options.usage_so_far else None if options.last_usage else UNSET,
        )

    def _shown(self, answer: _CompletionChoiceState, logprobs: list[TokenLogprob]) -> CompletionLogprobs | None:
        if self._top is None:
            return None
        shown = completion_logprobs(self._options.tokenizer, logprobs, answer.shown, top=self._top > 0)
        answer.shown += sum(len(token_text(self._options.tokenizer, entry.token_id)) for entry in logprobs)
        return shown

    def _note_end(self, index: int, update: UpdateHead) -> None:
        if update.finish is not None:
            self._answers[index].reason = update.finish.finish_reason
            self._answers[index].matched_stop = update.finish.matched_stop
            self._call.reasons[index] = update.finish.finish_reason

    def texts(self) -> list[str]:
        return ["".join(answer.text) for answer in self._answers]
