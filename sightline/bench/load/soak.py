"""`sightline bench soak`: a mixed load for minutes, after which a server must hold nothing and no more memory than before.

Workers ask one question after another, each drawn from a seed: new pictures of any size and format, pictures that were shown
before, text alone, long answers, answers in JSON, whole answers and streams; and some leave in the middle, by closing the
connection. Before and after, the server's metrics and the memory of its processes are read while it is idle.

With a hostile mix (hostile.py) one in three questions is meant to hurt. If the server's processes are killed meanwhile
(bench/soak_server.py), questions that this interrupts are no errors; all else holds.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from sightline.bench.load.body import Medium, RequestOptions, RequestSample, image_part, request_body
from sightline.bench.load.datasets import user_message
from sightline.bench.load.hostile import HostileMix
from sightline.bench.load.http import TransportError
from sightline.bench.load.images import Format, ImageKind, make_image
from sightline.bench.load.machine import gpu_memory_mb, process_age_s, process_memory_mb
from sightline.bench.load.request_result import RequestResult
from sightline.bench.load.server_metrics import fetch_metrics, metric
from sightline.bench.load.soak_report import Holding, SoakConfig, SoakResult, Tally, complaints, growth, shown
from sightline.bench.load.target import Target, TargetError
from sightline.bench.load.texts import random_text

KINDS = {  # what a question is, and how often
    "new images": 0.35,
    "known image": 0.15,
    "text": 0.15,
    "long answer": 0.1,
    "json": 0.05,
    "leaves while it waits": 0.1,
    "leaves while it reads": 0.1,
}
HOSTILE = "hostile"
_HOSTILE_SHARE = 0.35
_INTERRUPTED = ("HTTP 503", "HTTP 429")  # and whatever is not about HTTP: connections that are refused, lost or cut short
_COME_BACK_S = 2.0
_LOOK_AT_YOUNG_S = 3.0  # how often memory is read where no process lives for long
_FORMATS: tuple[Format, ...] = ("jpeg", "png", "webp")
_HELD = (
    *("requests_in_progress{route=/v1/chat/completions}", "num_requests_running", "num_requests_waiting"),
    *("kv_cache_usage_perc", "inflight_requests", "inflight_bytes"),
)
_IDLE_S = 120.0  # within which everything must be over at the end
_KNOWN_PICTURES = 8


async def run_soak(
    config: SoakConfig,
    target: Target,
    tokens_per_word: float,
    told: Callable[[str], None],
    meanwhile: Coroutine[Any, Any, None] | None = None,
) -> SoakResult:
    """`meanwhile` goes on, if it does, between the warm-up and the end of the load, when the server must be ready again."""
    tally = Tally()
    watch = _Watch(config, target)
    hostile = HostileMix(config.hostile, target.model) if config.hostile else None
    known = [make_image(ImageKind("224x320", quality=90), (config.seed, 7, number)) for number in range(_KNOWN_PICTURES)]
    if config.warm_up_s:
        told(f"warming up for {config.warm_up_s:g} s")
        warm = Tally()
        await _load(config, target, tokens_per_word, known, hostile, warm, config.warm_up_s, (config.seed, 0))
        if warm.errors:
            raise TargetError(f"The warm-up failed: {warm.errors.most_common(1)[0][0]}")
    await watch.until_idle()
    before = await watch.look()
    told(f"before: {shown(before)}")
    samples: list[Holding] = []
    seconds = 60 * config.minutes

    async def sample() -> None:
        next_told = 0.0
        while True:
            await asyncio.sleep(_LOOK_AT_YOUNG_S if config.kills else max(1.0, seconds / 20))
            try:
                samples.append(await watch.look())
            except (TransportError, TargetError):
                if not config.kills:
                    raise
                continue
            if samples[-1].seconds < next_told:
                continue
            next_told = samples[-1].seconds + seconds / 20
            done = sum(tally.asked.values())
            told(f"{samples[-1].seconds:6.0f} s  {done} questions, {tally.errors.total()} errors  {shown(samples[-1])}")

    sampling = asyncio.create_task(sample())
    disturbing = asyncio.create_task(meanwhile) if meanwhile is not None else None
    try:
        await _load(config, target, tokens_per_word, known, hostile, tally, seconds, (config.seed, 1))
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
        if disturbing is not None:
            await _end(disturbing)
            await watch.until_ready()
    left = await watch.until_idle()
    after = await watch.look()
    told(f"after: {shown(after)}")
    found = complaints(config, tally, before, samples, after, left) + growth(config, samples)
    return SoakResult(tally, before, after, samples, found)


async def _end(task: "asyncio.Task[None]") -> None:
    if task.done():
        task.result()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _load(
    config: SoakConfig,
    target: Target,
    tokens_per_word: float,
    known: Sequence[Medium],
    hostile: HostileMix | None,
    tally: Tally,
    seconds: float,
    seed: tuple[int, int],
) -> None:
    end = time.perf_counter() + seconds
    workers = [
        _Worker(config, target, tokens_per_word, known, hostile, tally, np.random.default_rng((*seed, number)))
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
        hostile: HostileMix | None,
        tally: Tally,
        random: np.random.Generator,
    ) -> None:
        self._config, self._target, self._per_word, self._known = config, target, tokens_per_word, known
        self._hostile, self._tally, self._random = hostile, tally, random

    async def run(self, end: float) -> None:
        kinds, chances = list(KINDS), np.array(list(KINDS.values()))
        while time.perf_counter() < end:
            if self._hostile is not None and self._random.random() < _HOSTILE_SHARE:
                self._tally.asked[HOSTILE] += 1
                body = await asyncio.to_thread(self._hostile.body, self._random)
                await self._take(await self._target.ask(body, stream=False), HOSTILE)
                continue
            kind = str(self._random.choice(kinds, p=chances / chances.sum()))
            self._tally.asked[kind] += 1
            if kind.startswith("leaves"):
                await self._leave(kind)
            else:
                await self._take(await self._target.ask(await self._body(kind), stream=kind != "json"), kind)

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
        sample = RequestSample(user_message([image_part(picture) for picture in pictures], text), length, extra)
        options = RequestOptions(self._target.model, stream=kind != "json", ignore_eos=kind == "long answer")
        return request_body(sample, options)

    async def _take(self, answer: RequestResult, kind: str) -> None:
        """Whoever was interrupted waits a little before the next question."""
        before = self._tally.interrupted
        self._note(answer, kind)
        if self._tally.interrupted > before:
            await asyncio.sleep(_COME_BACK_S)

    def _note(self, answer: RequestResult, kind: str) -> None:
        tally = self._tally
        if answer.failure is not None:
            failed = answer.failure.kind
            if kind == HOSTILE and failed.startswith("HTTP 4"):
                tally.refused += 1
                return
            if self._config.kills and (failed in _INTERRUPTED or not failed.startswith("HTTP")):
                tally.interrupted += 1
                return
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
        resident, started = (metrics.get(f"process_{name}") for name in ("resident_memory_bytes", "start_time_seconds"))
        engine = await self._engine_pid()
        return Holding(
            seconds=time.perf_counter() - self._began,
            gpu_mb=await asyncio.to_thread(gpu_memory_mb),
            api_mb=None if resident is None else resident / 2**20,
            engine_mb=None if engine is None else process_memory_mb(engine),
            metrics={name: value for name, value in metrics.items() if name.startswith("sightline:") and "bucket" not in name},
            api_age_s=None if started is None else time.time() - started,
            engine_age_s=None if engine is None else process_age_s(engine),
        )

    async def _engine_pid(self) -> int | None:
        if self._admin is None:
            return None
        reply = await self._target.client.request("GET", "/stats", headers=self._admin)
        if reply.status != 200:
            raise TargetError(f"/stats answers with {reply.status}: is --admin-api-key the server's?")
        return int(msgspec.json.decode(bytes(reply.body))["engine_pid"])

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

    async def until_ready(self) -> None:
        end = time.perf_counter() + _IDLE_S
        while time.perf_counter() < end:
            with contextlib.suppress(TransportError):
                if (await self._target.client.request("GET", "/ready")).status == 200:
                    return
            await asyncio.sleep(0.25)
        raise TargetError(f"The server was not ready {_IDLE_S:g} s after the load.")

    async def _left(self) -> list[str]:
        try:
            metrics = await fetch_metrics(self._target)
        except TransportError as error:
            return [str(error)]
        if not metrics:
            raise TargetError("The server has no /metrics: whether it leaks cannot be seen.")
        return [f"{name} is {metric(metrics, name):g}" for name in _HELD if metric(metrics, name)]
