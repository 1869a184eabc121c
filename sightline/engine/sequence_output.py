"""The answer of one sequence as it grows: how its tokens are chosen, text, end, log-probabilities, times."""

import time
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from sightline.grammar.matcher import Matcher
from sightline.prompt.tokenizer import Tokenizer
from sightline.sampling_params import ResolvedSampling, UniformNumbers
from sightline.schedule.state import Sequence
from sightline.stream.detokenise import IncrementalText
from sightline.timing import StageClock
from sightline.types import Completion, TokenLogprob
from sightline.worker.step_input import SamplingRow, SlotReset

FinishReason = Literal["stop", "length"]


@dataclass
class SequenceOutput:
    """Everything about a sequence that the scheduler does not need to know."""

    request_id: int
    index: int  # which of the request's n answers
    sequence: Sequence
    sampling: ResolvedSampling
    numbers: UniformNumbers
    end_tokens: frozenset[int]
    text: IncrementalText
    clock: StageClock
    arrived: float  # seconds on the host's clock, as all times here
    grammar: Matcher | None = None  # which tokens may come, if the answer must have a form
    started: float | None = None
    first_token: float | None = None
    encoded_items: int = 0
    end_token: int | None = None  # that stopped it
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    _start: int = -1  # the sequence's start for which the worker counts tokens
    _counted: int = 0  # tokens of the answer that it has counted since then

    def __post_init__(self) -> None:
        self._plain = replace(self.sampling, structured=None)  # what a worker is told with every token

    # ---- How the next tokens are chosen

    def new_slot(self) -> SlotReset | None:
        """What the worker must know once the sequence has a slot that it did not have when it last sampled."""
        if self._start == self.sequence.starts:
            return None
        self._start, self._counted = self.sequence.starts, 0
        return SlotReset(self.sequence.slot, np.unique(self.sequence.request.token_ids).astype(np.int64))

    def sampling_rows(self, drafts: tuple[int, ...]) -> list[SamplingRow]:
        """For the next token, and for the one after each draft."""
        sequence = self.sequence
        done = len(sequence.output) + sequence.in_flight
        count_ids: tuple[int, ...] = ()
        if self.sampling.penalised:
            count_ids = (*sequence.output[self._counted :], *(-1,) * sequence.in_flight)
            self._counted = done
        rows = [self._row(done, count_ids, ())]
        for number in range(1, len(drafts) + 1):
            rows.append(self._row(done + number, (), drafts[:number] if self.sampling.penalised else ()))
        return rows

    def _row(self, position: int, count_ids: tuple[int, ...], draft_ids: tuple[int, ...]) -> SamplingRow:
        return SamplingRow(
            slot=self.sequence.slot,
            sampling=self._plain,
            uniform=0.0 if self.sampling.greedy else self.numbers.at(position),
            banned_ids=self.banned_ids(position) if self.grammar is None else (),
            count_ids=count_ids,
            draft_ids=draft_ids,
        )

    def banned_ids(self, position: int) -> tuple[int, ...]:
        """End tokens while min_tokens is not reached."""
        return tuple(self.end_tokens) if position < self.sampling.min_tokens else ()

    # ---- Tokens that came

    def take_token(self, token: int, count: int, tokenizer: Tokenizer) -> tuple[str, FinishReason | None]:
        """The text that became final with the answer's token number `count`, and the reason if it is the last."""
        if self.first_token is None:
            self.first_token = time.perf_counter()
        early = count < self.sampling.min_tokens
        grammar = self.grammar
        reason: FinishReason | None = None
        # Before min_tokens an end token comes only where a grammar left nothing else.
        if token in self.end_tokens and (not early or (grammar is not None and grammar.may_end)):
            reason, delta = "stop", ""
            self.end_token = token
        else:
            delta = self.text.push([token])
            if grammar is not None:
                grammar.advance(token)
            if self.text.stopped or (grammar is not None and grammar.complete):
                reason = "stop"
        if reason is None and count >= self.sequence.max_tokens:
            reason = "length"
        if reason is not None:
            delta += self.text.finish()
        self.parts.append(delta)
        return delta, reason

    def completion(self, reason: FinishReason) -> Completion:
        return Completion(
            text="".join(self.parts),
            token_ids=tuple(self.sequence.output),
            finish_reason=reason,
            prompt_tokens=len(self.sequence.request),
            timings=self.timings(),
            cached_tokens=self.sequence.cached_tokens,
            media_items=len(self.sequence.request.items),
            encoded_items=self.encoded_items,
            logprobs=tuple(self.logprobs),
            index=self.index,
            matched_stop=self._matched_stop(reason),
        )

    def _matched_stop(self, reason: FinishReason) -> int | str | None:
        if self.end_token is not None or reason == "length":
            return self.end_token
        return self.text.matched_stop

    def timings(self) -> dict[str, float]:
        """Seconds per stage. fetch to prefill are sums of work; queue, first_token and total run from the arrival."""
        now = time.perf_counter()
        started = self.started if self.started is not None else now
        first = self.first_token if self.first_token is not None else now
        order = ("fetch", "header", "prompt", "decode", "preprocess", "encode", "prefill")
        work = {stage: self.clock.seconds.get(stage, 0.0) for stage in order}
        later = len(self.sequence.output) - 1
        return {
            **dict(list(work.items())[:3]),
            "queue": started - self.arrived,
            **dict(list(work.items())[3:]),
            "first_token": first - self.arrived,
            "per_token": (now - first) / later if later > 0 else 0.0,
            "total": now - self.arrived,
        }
