"""`sightline bench multiturn`: a conversation to which each round adds a picture and re-sends all that was said.

A server that remembers needs the same time for each round; one that decodes, hashes or encodes old pictures again needs more
with every round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sightline.bench.load.body import RequestOptions, RequestSample, image_part, request_body, text_part
from sightline.bench.load.datasets import make_images
from sightline.bench.load.images import ImageKind
from sightline.bench.load.progress import Bar
from sightline.bench.load.request_result import RequestResult
from sightline.bench.load.server_timings import encoded_items, tower_ms, with_timings
from sightline.bench.load.target import Target, TargetConfig
from sightline.bench.load.texts import random_text
from sightline.errors import ConfigError

_WARM_UP = 1 << 20  # numbers of pictures to warm up with


@dataclass(frozen=True)
class MultiturnConfig:
    target: TargetConfig = field(default_factory=TargetConfig)
    images: tuple[ImageKind, ...] = (ImageKind("720p"), ImageKind("1080p"), ImageKind("2k"))
    rounds: int = 8
    conversations: int = 1
    input_len: int = 32
    output_len: int = 16
    ignore_eos: bool = True
    warm_up: bool = True
    seed: int = 0
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = True

    def __post_init__(self) -> None:
        for name, value in (
            ("The number of rounds", self.rounds),
            ("The number of conversations", self.conversations),
            ("The input length", self.input_len),
            ("The output length", self.output_len),
        ):
            if value < 1:
                raise ConfigError(f"{name} is {value}, but must be at least 1.")


@dataclass(frozen=True)
class Round:
    """One round at one resolution, over all conversations. What the server does not tell is None."""

    resolution: str
    number: int  # from 0; so many pictures are known already
    ttfts_ms: tuple[float, ...]
    latencies_ms: tuple[float, ...]
    prompt_tokens: int | None
    cached_tokens: int | None
    tower_ms: float | None
    encoded_items: int | None
    error: str | None  # of the first conversation that broke off here

    @property
    def ttft_ms(self) -> float | None:
        return median(self.ttfts_ms) if self.ttfts_ms else None


async def run_multiturn(config: MultiturnConfig, target: Target, tokens_per_word: float) -> list[Round]:
    talker = _Talker(config, target, tokens_per_word)
    found: list[Round] = []
    with Bar("Conversations", len(config.images) * config.conversations * config.rounds, config.progress) as bar:
        for kind in config.images:
            if config.warm_up:
                await talker.talk(kind, _WARM_UP, min(2, config.rounds))
            starts = range(0, config.conversations * config.rounds, config.rounds)
            talks = [await talker.talk(kind, first, config.rounds, bar) for first in starts]
            found += [_round(kind.resolution, number, talks) for number in range(config.rounds)]
    return found


class _Talker:
    """Leads conversations with one server."""

    def __init__(self, config: MultiturnConfig, target: Target, tokens_per_word: float) -> None:
        self._config, self._target, self._per_word = config, target, tokens_per_word
        self._options = RequestOptions(target.model, True, config.ignore_eos, with_timings(config.extra_body, target))

    async def talk(self, kind: ImageKind, first: int, rounds: int, bar: Bar | None = None) -> list[RequestResult]:
        """One conversation about the pictures from number `first` on; ends early if an answer fails."""
        config = self._config
        messages: list[dict[str, Any]] = []
        answers: list[RequestResult] = []
        for number, picture in enumerate(make_images(kind, (config.seed, 3), range(first, first + rounds)), first):
            question = random_text(config.input_len, self._per_word, (config.seed, 3, number))
            messages.append({"role": "user", "content": [image_part(picture), text_part(question)]})
            body = request_body(RequestSample(messages, config.output_len), self._options)
            answer = await self._target.ask(body, stream=True)
            answers.append(answer)
            if bar is not None:
                bar.begun(answer)
                bar.take(answer)
            if answer.failure is not None:
                break
            messages.append({"role": "assistant", "content": answer.text})
        return answers


def _round(resolution: str, number: int, talks: Sequence[Sequence[RequestResult]]) -> Round:
    reached = [talk[number] for talk in talks if len(talk) > number]
    good = [answer for answer in reached if answer.failure is None]
    failures = [answer.failure for answer in reached if answer.failure is not None]
    towers = [ms for answer in good if (ms := tower_ms(answer)) is not None]
    return Round(
        resolution=resolution,
        number=number,
        ttfts_ms=tuple(1000 * answer.ttft for answer in good if answer.ttft is not None),
        latencies_ms=tuple(1000 * answer.latency for answer in good),
        prompt_tokens=good[0].prompt_tokens if good else None,
        cached_tokens=good[0].cached_tokens if good else None,
        tower_ms=median(towers) if towers else None,
        encoded_items=encoded_items(good[0]) if good else None,
        error=f"{failures[0].kind}: {failures[0].message}" if failures else None,
    )


def last_round_figures(rounds: Sequence[Round], name: str | None = None) -> dict[str, float]:
    """Median TTFT of the last round by resolution, as summary.json calls it. A conversation that broke off gives none."""
    found = {}
    for resolution in dict.fromkeys(one.resolution for one in rounds):
        own = [one for one in rounds if one.resolution == resolution]
        last = max(own, key=lambda one: one.number)
        if last.ttft_ms is not None and not any(one.error for one in own):
            found[f"{name or f'round{last.number}_ttft_ms'}.{resolution}"] = last.ttft_ms
    return found


def round_fields(found: Round) -> dict[str, Any]:
    return {
        "resolution": found.resolution,
        "round": found.number,
        "images": found.number + 1,
        "ttft_ms": _rounded(found.ttft_ms),
        "ttfts_ms": [_rounded(value) for value in found.ttfts_ms],
        "latencies_ms": [_rounded(value) for value in found.latencies_ms],
        "prompt_tokens": found.prompt_tokens,
        "cached_tokens": found.cached_tokens,
        "tower_ms": _rounded(found.tower_ms),
        "encoded_items": found.encoded_items,
        "error": found.error,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
