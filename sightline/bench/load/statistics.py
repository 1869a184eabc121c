"""Figures from answers: pure arithmetic over recorded times, so that each can be checked by hand.

Names and meanings follow `vllm bench serve` where it has the figure:

    TTFT   start to the first chunk with choices
    ITL    between one chunk with choices and the next; where a chunk carries several tokens it is still one gap
    TPOT   (latency - TTFT) / (output tokens - 1), per request with two tokens or more
    E2EL   start to the last chunk with choices
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.bench.load.request_result import RequestResult
from sightline.bench.load.server_timings import tower_ms

PERCENTILES = (90, 95, 99)


@dataclass(frozen=True)
class Spread:
    """How values in milliseconds are spread."""

    mean: float
    median: float
    std: float
    percentiles: dict[int, float]
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread | None":
        if not seconds:
            return None
        values = 1000 * np.asarray(seconds, np.float64)
        found = np.percentile(values, PERCENTILES)
        return cls(
            mean=float(values.mean()),
            median=float(np.median(values)),
            std=float(values.std()),
            percentiles={percent: float(value) for percent, value in zip(PERCENTILES, found, strict=True)},
            max=float(values.max()),
        )


@dataclass(frozen=True)
class Statistics:
    """Figures of a run over its successful answers. A total that the server does not tell for every answer is None."""

    duration: float
    completed: int
    failed: int
    input_tokens: int | None
    vision_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    output_tokens_told: bool  # by the server; else chunks with text were counted
    retokenized_tokens: int | None  # of the answers' texts, by a tokenizer of this client; None without one
    peak_output_tokens_per_s: float
    peak_concurrency: int
    concurrency: float  # on average
    e2el: Spread | None
    ttft: Spread | None
    first_text: Spread | None  # start to the first chunk with text
    text_came_later: int  # answers whose first chunk had no text, and the text came at least a millisecond after it
    tpot: Spread | None
    itl: Spread | None
    queued: Spread | None
    tower: Spread | None  # of the requests whose server tells; 0 of one without work for the tower
    failures: tuple[tuple[str, int, str], ...]  # kind, how many, the first one's message; most frequent first

    @property
    def text_tokens(self) -> int | None:
        if self.input_tokens is None or self.vision_tokens is None:
            return None
        return self.input_tokens - self.vision_tokens

    @property
    def request_throughput(self) -> float:
        return self.completed / self.duration

    @property
    def input_throughput(self) -> float | None:
        return None if self.input_tokens is None else self.input_tokens / self.duration

    @property
    def output_throughput(self) -> float:
        return self.output_tokens / self.duration

    @property
    def total_throughput(self) -> float | None:
        return None if self.input_tokens is None else (self.input_tokens + self.output_tokens) / self.duration


def statistics(
    answers: Sequence[RequestResult], duration: float, count_tokens: Callable[[str], int] | None = None
) -> Statistics:
    good = [answer for answer in answers if answer.failure is None]
    return Statistics(
        duration=duration,
        completed=len(good),
        failed=len(answers) - len(good),
        input_tokens=_total([answer.prompt_tokens for answer in good]),
        vision_tokens=_total([answer.vision_tokens for answer in good]),
        cached_tokens=_total([answer.cached_tokens for answer in good]),
        output_tokens=sum(answer.output_tokens for answer in good),
        output_tokens_told=all(answer.completion_tokens is not None for answer in good),
        retokenized_tokens=None if count_tokens is None else sum(count_tokens(answer.text) for answer in good),
        peak_output_tokens_per_s=peak_per_second(good),
        peak_concurrency=peak_concurrency(good),
        concurrency=sum(answer.latency for answer in good) / duration,
        e2el=Spread.of([answer.latency for answer in good]),
        ttft=Spread.of([answer.ttft for answer in good if answer.ttft is not None]),
        first_text=Spread.of([answer.first_text - answer.start for answer in good if answer.first_text is not None]),
        text_came_later=sum(text_came_later(answer) for answer in good),
        tpot=Spread.of([time for answer in good if (time := time_per_token(answer)) is not None]),
        itl=Spread.of([gap for answer in good for gap in answer.itls]),
        queued=Spread.of([answer.queued for answer in good]),
        tower=Spread.of([ms / 1000 for answer in good if (ms := tower_ms(answer)) is not None]),
        failures=count_failures(answers),
    )


def time_per_token(answer: RequestResult) -> float | None:
    if answer.ttft is None or answer.output_tokens < 2:
        return None
    return (answer.latency - answer.ttft) / (answer.output_tokens - 1)


def text_came_later(answer: RequestResult) -> bool:
    return bool(answer.chunk_times) and answer.first_text is not None and answer.first_text - answer.chunk_times[0] >= 0.001


def peak_per_second(answers: Sequence[RequestResult]) -> float:
    """Most chunks in one of the seconds that are counted from the first start on."""
    if not answers:
        return 0.0
    first = min(answer.start for answer in answers)
    seconds = Counter(int(time - first) for answer in answers for time in answer.chunk_times)
    return float(max(seconds.values(), default=0))


def peak_concurrency(answers: Sequence[RequestResult]) -> int:
    """Most requests that were under way at one time. One that ends as another starts does not overlap it."""
    changes = sorted([(answer.start, 1) for answer in answers] + [(answer.end, -1) for answer in answers])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def count_failures(answers: Sequence[RequestResult]) -> tuple[tuple[str, int, str], ...]:
    failures = [answer.failure for answer in answers if answer.failure is not None]
    first = {failure.kind: failure.message for failure in reversed(failures)}
    return tuple((kind, count, first[kind]) for kind, count in Counter(failure.kind for failure in failures).most_common())


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
