"""`sightline bench serve`: prepare, warm up, load, count."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sightline.bench.load.arrivals import arrival_times
from sightline.bench.load.body import RequestOptions, request_body
from sightline.bench.load.connection import connected, in_event_loop
from sightline.bench.load.datasets import DatasetConfig, make_run
from sightline.bench.load.generate import Body, LoadResult, generate_load
from sightline.bench.load.progress import Bar
from sightline.bench.load.server_metrics import busy_seconds, fetch_metrics
from sightline.bench.load.server_timings import with_timings
from sightline.bench.load.statistics import Statistics, statistics
from sightline.bench.load.target import Target, TargetConfig, TargetError
from sightline.bench.load.texts import tokens_per_word
from sightline.errors import ConfigError
from sightline.models.locate import locate_model
from sightline.prompt.tokenizer import Tokenizer


@dataclass(frozen=True)
class ServeConfig:
    target: TargetConfig = field(default_factory=TargetConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    num_prompts: int = 100
    request_rate: float = float("inf")
    max_concurrency: int | None = None
    num_warmups: int = 1
    again: bool = False  # every request is sent once before the clock starts, so that the server knows it
    stream: bool = True
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = True
    tokenizer: str | None = None  # folder or Hub id, to count the tokens of answers once more
    return_timings: bool = False  # ask a Sightline server for what its tower took

    def __post_init__(self) -> None:
        for name, value, least in (
            ("The number of prompts", self.num_prompts, 1),
            ("The number of warm-up requests", self.num_warmups, 0),
            ("The maximum concurrency", self.max_concurrency, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}, but must be at least {least}.")
        arrival_times(0, self.request_rate, 0)


@dataclass(frozen=True)
class ServeRun:
    model: str
    result: LoadResult
    figures: Statistics
    device_busy_share: float | None = None  # of the time that the load lasted, as far as the server tells


def bench_serve(config: ServeConfig, say: Callable[[str], None] = lambda line: None) -> ServeRun:
    return in_event_loop(_run(config, say))


async def _run(config: ServeConfig, say: Callable[[str], None]) -> ServeRun:
    tokenizer = None
    if config.tokenizer is not None:
        tokenizer = Tokenizer.from_folder(locate_model(config.tokenizer, None, weights=False))
    async with connected(config.target) as target:
        return await _measure(config, target, tokenizer, say)


async def _measure(config: ServeConfig, target: Target, tokenizer: Tokenizer | None, say: Callable[[str], None]) -> ServeRun:
    per_word = await words_to_tokens(target, say) if config.dataset.name in ("image", "text", "video") else 1.0
    extra_body = with_timings(config.extra_body, target) if config.return_timings else config.extra_body
    options = RequestOptions(target.model, config.stream, config.ignore_eos, extra_body)
    with Bar("Preparing", config.num_prompts, config.progress) as bar:
        samples = make_run(config.dataset, config.num_prompts, config.num_warmups, per_word, told=bar.set)
        bar.set(config.num_prompts)
    if samples.shortage is not None:
        say(samples.shortage)
    bodies = [request_body(sample, options) for sample in samples.measured]
    megabytes = sum(len(piece) for body in bodies for piece in body) / 1e6
    say(f"{len(bodies)} requests of {megabytes / len(bodies):.3f} MB on average to {target.model}")
    first = [request_body(sample, options) for sample in samples.warm_ups] + (bodies if config.again else [])
    if first:
        await _warm_up(config, target, first)
    with Bar("Measuring", len(bodies), config.progress) as bar:
        arrivals = arrival_times(len(bodies), config.request_rate, config.dataset.seed)
        before = busy_seconds(await fetch_metrics(target))
        result = await generate_load(target, bodies, arrivals, config.max_concurrency, config.stream, bar)
        after = busy_seconds(await fetch_metrics(target))
    share = None if before is None or after is None else (after - before) / result.duration
    count_tokens = None if tokenizer is None else lambda text: len(tokenizer.encode(text))
    return ServeRun(target.model, result, statistics(result.answers, result.duration, count_tokens), share)


async def _warm_up(config: ServeConfig, target: Target, bodies: Sequence[Body]) -> None:
    with Bar("Warming up", len(bodies), config.progress) as bar:
        warm = await generate_load(target, bodies, [0.0] * len(bodies), config.max_concurrency, config.stream, bar)
    failures = [answer.failure for answer in warm.answers if answer.failure is not None]
    if len(failures) == len(warm.answers):
        raise TargetError(f"Every warm-up request failed; the first one with {failures[0].kind}: {failures[0].message}")


async def words_to_tokens(target: Target, say: Callable[[str], None] = lambda line: None) -> float:
    found = await tokens_per_word(target.client, target.model)
    if found is None:
        say("The server has no /tokenize: text lengths are in words, each about one token.")
    return found or 1.0
