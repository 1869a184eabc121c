"""The answer of one sequence as it grows: text, end, log-probabilities, times."""

import time
from dataclasses import dataclass, field
from typing import Literal

from sightline.prompt.tokenizer import Tokenizer
from sightline.run.sampler import SamplingRow
from sightline.schedule.state import Sequence
from sightline.stream.detokenise import IncrementalText
from sightline.timing import StageClock
from sightline.types import Completion, TokenLogprob

FinishReason = Literal["stop", "length"]


@dataclass
class Answer:
    """Everything about a sequence that the scheduler does not need to know."""

    request_id: int
    index: int  # which of the request's n answers
    sequence: Sequence
    row: SamplingRow
    end_tokens: frozenset[int]
    text: IncrementalText
    clock: StageClock
    arrived: float  # seconds on the host's clock, as all times here
    started: float | None = None
    first_token: float | None = None
    encoded_items: int = 0
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def take_token(self, token: int, tokenizer: Tokenizer) -> tuple[str, FinishReason | None]:
        """The text that became final with a token that the sequence has just got, and the reason if it is the last."""
        if self.first_token is None:
            self.first_token = time.perf_counter()
        count = len(self.sequence.output)
        early = count < self.row.sampling.min_tokens
        grammar = self.row.grammar
        reason: FinishReason | None = None
        # Before min_tokens an end token comes only where a grammar left nothing else.
        if token in self.end_tokens and (not early or (grammar is not None and grammar.may_end)):
            reason, delta = "stop", ""
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
        )

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
