"""An open load through the real scheduler, in the time of a device that is modelled: what a step takes is given by a formula.

It shows what a policy of chunks does to times between tokens and to first tokens, not what a GPU does.
"""

from dataclasses import dataclass

import numpy as np

from sightline.cache.embeddings import EmbeddingCache
from sightline.cache.keys import root_key
from sightline.cache.pages import PageCache
from sightline.schedule.pace import Pace
from sightline.schedule.plan import plan_step
from sightline.schedule.progress import admit, advance, finish, take_tokens
from sightline.schedule.state import Limits, Schedule, Sequence
from sightline.types import Request

PAGE = 16


@dataclass(frozen=True)
class DeviceModel:
    step_s: float = 0.0043  # of decoding, whatever the batch
    sequence_s: float = 0.000046  # and for each sequence
    token_s: float = 0.000023  # of a prompt

    def seconds(self, decoding: int, tokens: int) -> float:
        return self.step_s + decoding * self.sequence_s + tokens * self.token_s


@dataclass(frozen=True)
class Load:
    rate: float  # requests a second, as they come
    requests: int
    prompt: tuple[int, int]  # tokens, from and to
    answer: tuple[int, int]
    seed: int = 1


@dataclass(frozen=True)
class Times:
    first_s: np.ndarray  # of each request, its first token after it came
    gaps_s: np.ndarray  # between tokens of an answer
    seconds: float  # in all
    exceeded: int

    def percentile(self, name: str, percent: float) -> float:
        return float(np.percentile(getattr(self, name), percent))


def simulate(load: Load, device: DeviceModel, pace: Pace | None, limits: Limits | None = None) -> Times:
    random = np.random.default_rng(load.seed)
    limits = limits or Limits(256, 8192, 65536, 16384, 512, async_encode=True)
    arrivals = np.cumsum(random.exponential(1 / load.rate, load.requests))
    prompts = random.integers(load.prompt[0], load.prompt[1] + 1, load.requests)
    answers = random.integers(load.answer[0], load.answer[1] + 1, load.requests)
    pages = int(sum((prompts + answers) // PAGE + 2))
    schedule = Schedule(limits, PageCache(pages, PAGE), EmbeddingCache(1, 1, 1, 0), pace=pace)
    now, next_one, steps = 0.0, 0, 0
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    gaps: list[float] = []
    while next_one < load.requests or schedule.has_work:
        if not schedule.has_work:
            now = max(now, float(arrivals[next_one]))
        while next_one < load.requests and arrivals[next_one] <= now:
            admit(schedule, [_sequence(next_one, int(prompts[next_one]), int(answers[next_one]), random)])
            next_one += 1
        step = plan_step(schedule)
        took = device.seconds(step.decoding, step.prompt_tokens)
        now, steps = now + took, steps + 1
        if pace is not None:
            pace.note(step.decoding, step.prompt_tokens, took, 0, 0.0)
        advance(schedule, step)
        take_tokens(schedule, step, {chunk.sequence.id: [1] for chunk in step.chunks if chunk.samples})
        for chunk in step.chunks:
            sequence = chunk.sequence
            if not chunk.samples:
                continue
            if sequence.id in last:
                gaps.append(now - last[sequence.id])
            else:
                first[sequence.id] = now - float(arrivals[sequence.id])
            last[sequence.id] = now
            if len(sequence.output) == sequence.max_tokens:
                finish(schedule, sequence)
    order = [first[index] for index in range(load.requests)]
    return Times(np.array(order), np.array(gaps), now, pace.exceeded if pace is not None else 0)


def _sequence(number: int, prompt: int, answer: int, random: np.random.Generator) -> Sequence:
    tokens = random.integers(2, 50_000, prompt).astype(np.int32)
    request = Request(tokens, np.broadcast_to(np.arange(prompt, dtype=np.int32), (3, prompt)), 0, (), ())
    return Sequence(number, request, answer, 0, number, root_key(""), (), PAGE)
