"""`sightline bench soak`: a mixed load for minutes, after which a server must hold nothing and no more memory than before.

Workers ask one question after another, each drawn from a seed: new pictures of any size and format, pictures that were shown
before, text alone, long answers, answers in JSON, whole answers and streams; and some leave in the middle, by closing the
connection. Before and after, the server's metrics and the memory of its processes are read while it is idle.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import msgspec
import numpy as np

from sightline.bench.load.answer import Answer
from sightline.bench.load.body import Medium, RequestOptions, Sample, image_part, request_body
from sightline.bench.load.datasets import user_message
from sightline.bench.load.http import TransportError
from sightline.bench.load.images import Format, ImageKind, make_image
from sightline.bench.load.machine import gpu_memory_mb, process_memory_mb
from sightline.bench.load.server_metrics import device_in, fetch_metrics, metric
from sightline.bench.load.statistics import Spread
from sightline.bench.load.target import Target, TargetError
from sightline.bench.load.texts import random_text
from sightline.errors import ConfigError

KINDS = {  # what a question is, and how often
    "new images": 0.35,
    "known image": 0.15,
    "text": 0.15,
    "long answer": 0.1,
    "json": 0.05,
    "leaves while it waits": 0.1,
    "leaves while it reads": 0.1,
}
_FORMATS: tuple[Format, ...] = ("jpeg", "png", "webp")
_HELD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "inflight_requests", "inflight_bytes")
_IDLE_S = 120.0  # within which everything must be over at the end
_KNOWN_PICTURES = 8


@dataclass(frozen=True)
class SoakConfig:
    minutes: float = 10.0
    concurrency: int = 16
    largest_side: int = 2048  # of a picture, pixels
    most_images: int = 4  # of a question
    long_answer: int = 1024  # tokens
    input_len: int = 64
    seed: int = 0
    warm_up_s: float = 30.0  # of the same load, before memory is read
    gpu_slack_mb: float = 512.0  # by which memory may have grown
    process_slack_mb: float = 1024.0
    admin_api_key: str | None = field(default=None, repr=False)  # with it caches are emptied and the engine's memory is read

    def __post_init__(self) -> None:
        for name in ("minutes", "concurrency", "largest_side", "most_images", "long_answer", "input_len"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} is {getattr(self, name)}, but must be above 0.")


@dataclass(frozen=True)
class Holding:
    """What a server holds at a moment. What is not known is None."""

    seconds: float  # since the load began
    gpu_mb: float | None
    api_mb: float | None
    engine_mb: float | None
    metrics: dict[str, float]


@dataclass
class Tally:
    asked: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ttfts: list[float] = field(default_factory=list)
    output_tokens: int = 0
    left: int = 0  # connections closed in the middle


@dataclass(frozen=True)
class SoakResult:
    tally: Tally
    before: Holding
    after: Holding
    samples: list[Holding]  # on the way
    complaints: list[str]  # what is wrong; empty if all is well


async def run_soak(config: SoakConfig, target: Target, tokens_per_word: float, told: Callable[[str], None]) -> SoakResult:
    tally = Tally()
    watch = _Watch(config, target)
    known = [make_image(ImageKind("224x320", quality=90), (config.seed, 7, number)) for number in range(_KNOWN_PICTURES)]
    if config.warm_up_s:
        told(f"warming up for {config.warm_up_s:g} s")
        warm = Tally()
        await _load(config, target, tokens_per_word, known, warm, config.warm_up_s, (config.seed, 0))
        if warm.errors:
            raise TargetError(f"The warm-up failed: {warm.errors.most_common(1)[0][0]}")
    await watch.until_idle()
    before = await watch.look()
    told(f"before: {_shown(before)}")
    samples: list[Holding] = []
    seconds = 60 * config.minutes

    async def sample() -> None:
        while True:
            await asyncio.sleep(max(1.0, seconds / 20))
            samples.append(await watch.look())
            done = sum(tally.asked.values())
            told(f"{samples[-1].seconds:6.0f} s  {done} questions, {tally.errors.total()} errors  {_shown(samples[-1])}")

    sampling = asyncio.create_task(sample())
    try:
        await _load(config, target, tokens_per_word, known, tally, seconds, (config.seed, 1))
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
    left = await watch.until_idle()
    after = await watch.look()
    told(f"after: {_shown(after)}")
    return SoakResult(tally, before, after, samples, complaints(config, tally, before, after, left))


async def _load(
    config: SoakConfig,
    target: Target,
    tokens_per_word: float,
    known: Sequence[Medium],
    tally: Tally,
    seconds: float,
    seed: tuple[int, int],
) -> None:
    end = time.perf_counter() + seconds
    workers = [
        _Worker(config, target, tokens_per_word, known, tally, np.random.default_rng((*seed, number)))
        for number in range(config.concurrency)
    ]
    await asyncio.gather(*(worker.run(end) for worker in workers))


class _Worker:
    def __init__(
        self,
        config: SoakConfig,
        target: Target,
        tokens_per_word: float,
        known: Sequence[Medium],
        tally: Tally,
        random: np.random.Generator,
    ) -> None:
        self._config, self._target, self._per_word, self._known = config, target, tokens_per_word, known
        self._tally, self._random = tally, random

    async def run(self, end: float) -> None:
        kinds, chances = list(KINDS), np.array(list(KINDS.values()))
        while time.perf_counter() < end:
            kind = str(self._random.choice(kinds, p=chances / chances.sum()))
            self._tally.asked[kind] += 1
            if kind.startswith("leaves"):
                await self._leave(kind)
            else:
                self._note(await self._target.ask(await self._body(kind), stream=kind != "json"), kind)

    async def _leave(self, kind: str) -> None:
        """Closes the connection before the answer begins, or some tokens into it."""
        begun = asyncio.Event()
        body = await self._body("new images" if self._random.random() < 0.5 else "long answer")
        asked = asyncio.create_task(self._target.ask(body, True, begun=lambda answer: begun.set()))
        if kind == "leaves while it reads":
            waiting = asyncio.create_task(begun.wait())
            await asyncio.wait((asked, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        await asyncio.wait((asked,), timeout=float(self._random.exponential(0.2)))
        if asked.done():
            self._note(asked.result(), kind)
            return
        asked.cancel()
        self._tally.left += 1
        with contextlib.suppress(asyncio.CancelledError):
            await asked

    async def _body(self, kind: str) -> tuple[bytes, ...]:
        random, config = self._random, self._config
        text = random_text(int(random.integers(1, 2 * config.input_len + 1)), self._per_word, (int(random.integers(1 << 30)),))
        pictures: list[Medium] = []
        if kind == "new images":
            for _ in range(int(random.integers(1, config.most_images + 1))):
                height, width = (int(side) for side in np.exp(random.uniform(np.log(32), np.log(config.largest_side), 2)))
                if max(height, width) > 100 * min(height, width):
                    height = width
                content = "photo" if random.random() < 0.8 else "noise"
                form = cast(Format, str(random.choice(_FORMATS)))
                made = ImageKind(f"{height}x{width}", cast(Any, content), form, int(random.integers(50, 96)))
                pictures.append(await asyncio.to_thread(make_image, made, (int(random.integers(1 << 30)),)))
        elif kind == "known image":
            pictures = [self._known[int(random.integers(len(self._known)))]]
        length = config.long_answer if kind == "long answer" else int(random.integers(1, 65))
        extra: dict[str, Any] = {"response_format": {"type": "json_object"}} if kind == "json" else {}
        if kind != "json" and random.random() < 0.3:
            extra = {"temperature": 0.8, "top_p": 0.9, "seed": int(random.integers(1 << 30))}
        sample = Sample(user_message([image_part(picture) for picture in pictures], text), length, extra)
        options = RequestOptions(self._target.model, stream=kind != "json", ignore_eos=kind == "long answer")
        return request_body(sample, options)

    def _note(self, answer: Answer, kind: str) -> None:
        tally = self._tally
        if answer.failure is not None:
            tally.errors[f"{kind}: {answer.failure.kind}: {answer.failure.message}"] += 1
            return
        tally.output_tokens += answer.output_tokens
        if answer.ttft is not None:
            tally.ttfts.append(answer.ttft)


class _Watch:
    """Reads what a server holds."""

    def __init__(self, config: SoakConfig, target: Target) -> None:
        self._config, self._target = config, target
        self._began = time.perf_counter()
        self._admin = {"authorization": f"Bearer {config.admin_api_key}"} if config.admin_api_key else None

    async def look(self) -> Holding:
        metrics = await fetch_metrics(self._target)
        resident = metrics.get("process_resident_memory_bytes")
        return Holding(
            seconds=time.perf_counter() - self._began,
            gpu_mb=await asyncio.to_thread(gpu_memory_mb),
            api_mb=None if resident is None else resident / 2**20,
            engine_mb=await self._engine_mb(),
            metrics={name: value for name, value in metrics.items() if name.startswith("sightline:") and "bucket" not in name},
        )

    async def _engine_mb(self) -> float | None:
        if self._admin is None:
            return None
        reply = await self._target.client.request("GET", "/stats", headers=self._admin)
        if reply.status != 200:
            raise TargetError(f"/stats answers with {reply.status}: is --admin-api-key the server's?")
        return process_memory_mb(int(msgspec.json.decode(bytes(reply.body))["engine_pid"]))

    async def until_idle(self) -> list[str]:
        """Waits until the server holds nothing; what it still holds when patience ends. With a key, caches are emptied."""
        end = time.perf_counter() + _IDLE_S
        left = await self._left()
        while left and time.perf_counter() < end:
            await asyncio.sleep(0.25)
            left = await self._left()
        if self._admin is not None and not left:
            await self._target.client.request("POST", "/flush_cache", headers=self._admin)
            metrics = await fetch_metrics(self._target)
            caches = [f"cache_bytes{{cache={cache}}}" for cache in ("prefix", "embedding")]
            left = [f"{name} is {metric(metrics, name):g} after a flush" for name in caches if metric(metrics, name)]
        return left

    async def _left(self) -> list[str]:
        try:
            metrics = await fetch_metrics(self._target)
        except TransportError as error:
            return [str(error)]
        if not metrics:
            raise TargetError("The server has no /metrics: whether it leaks cannot be seen.")
        return [f"{name} is {metric(metrics, name):g}" for name in _HELD if metric(metrics, name)]


def complaints(config: SoakConfig, tally: Tally, before: Holding, after: Holding, left: Sequence[str]) -> list[str]:
    found = [f"{count} times: {error}" for error, count in tally.errors.most_common()]
    found += [f"still held when idle: {one}" for one in left]
    for name, then, now, slack in (
        ("memory of the GPU", before.gpu_mb, after.gpu_mb, config.gpu_slack_mb),
        ("memory of the API process", before.api_mb, after.api_mb, config.process_slack_mb),
        ("memory of the engine's process", before.engine_mb, after.engine_mb, config.process_slack_mb + _caches_mb(before)),
    ):
        if then is not None and now is not None and now > then + slack:
            found.append(f"{name} grew from {then:.0f} to {now:.0f} MB")
    restarts = [holding.metrics.get("sightline:engine_restarts_total", 0.0) for holding in (before, after)]
    if restarts[1] > restarts[0]:
        found.append(f"the engine was started again {restarts[1] - restarts[0]:g} times")
    return found


def _caches_mb(holding: Holding) -> float:
    """Of the caches, where the engine's process has them: on a CPU, whose memory is given out when it is first filled."""
    if device_in(holding.metrics) != "cpu":
        return 0.0
    names = [f"sightline:engine_memory_bytes{{part={part}}}" for part in ("kv_cache", "embeddings")]
    return sum(holding.metrics.get(name, 0.0) for name in names) / 2**20


def _shown(holding: Holding) -> str:
    own = holding.metrics.get("sightline:engine_gpu_bytes")
    parts = (
        ("GPU", holding.gpu_mb),
        ("torch on it", own / 2**20 if own else None),
        ("API", holding.api_mb),
        ("engine", holding.engine_mb),
    )
    return ", ".join(f"{name} {value:.0f} MB" for name, value in parts if value is not None) or "no memory known"


def result_fields(config: SoakConfig, result: SoakResult) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(config).items() if name != "admin_api_key"}
    spread = Spread.of(result.tally.ttfts)
    return {
        "settings": settings,
        "asked": dict(result.tally.asked),
        "left": result.tally.left,
        "output_tokens": result.tally.output_tokens,
        "ttft_median_ms": spread.median if spread else None,
        "ttft_p99_ms": spread.percentiles[99] if spread else None,
        "errors": dict(result.tally.errors),
        "complaints": result.complaints,
        "before": asdict(result.before),
        "after": asdict(result.after),
        "samples": [{**asdict(sample), "metrics": None} for sample in result.samples],
    }
