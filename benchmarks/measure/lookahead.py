"""Answers that are being written while requests with images arrive: how long tokens take, and how soon the others have theirs.

The engine runs in this process and its steps are watched from outside: a token counts when the step that told it has returned.
Prompts are built beforehand, so the time to the first token begins at the engine.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pybase64
import torch

from benchmarks.measure.device_name import device_name
from benchmarks.measure.prompts import add_greedy, random_prompt
from sightline.bench.load.arrivals import arrival_times
from sightline.bench.load.images import ImageKind, make_image
from sightline.config import Config
from sightline.engine.engine import Engine
from sightline.engine.load import load_engine
from sightline.errors import ConfigError
from sightline.models.files import ModelFiles, read_model_files
from sightline.types import Request

_QUIET_ROUNDS = 50  # of decoding alone, before the first image comes
_WARM_UP = 1 << 20  # numbers of pictures to warm up with


@dataclass(frozen=True)
class ArrivalLoad:
    image: ImageKind = field(default_factory=lambda: ImageKind(quality=90))
    decodes: int = 16
    arrivals: int = 32
    images: int = 1  # in each arriving request
    rate: float = 8.0  # arriving requests per second
    context: int = 512  # tokens that an answer being written has before it
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("decodes", "arrivals", "images", "context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} is {getattr(self, name)}, but must be at least 1.")
        arrival_times(0, self.rate, 0)


@dataclass(frozen=True)
class ArrivalResult:
    """Milliseconds."""

    quiet_itls: tuple[float, ...]  # gaps between tokens of the answers being written, before images came
    itls: tuple[float, ...]  # while images were on their way
    ttfts: tuple[float, ...]  # of the requests with images, from when they were due
    device: str

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, values in (("quiet_itl", self.quiet_itls), ("itl", self.itls), ("ttft", self.ttfts)):
            found |= {f"{name}_median_ms": float(np.median(values)), f"{name}_p99_ms": float(np.percentile(values, 99))}
        found["itl_max_ms"] = max(self.itls)
        return found


def measure_arrivals(config: Config, load: ArrivalLoad) -> ArrivalResult:
    """Loads an engine with these settings. To be called in a process of its own, which gives the device's memory back."""
    files = read_model_files(config.model, config.media)
    engine = load_engine(config, files)
    try:
        run = _Run(engine, files, config, load)
        run.measure(run.prompts(_WARM_UP, min(4, load.arrivals)))
        return run.measure(run.prompts(0, load.arrivals))
    finally:
        engine.close()


class _Run:
    def __init__(self, engine: Engine, files: ModelFiles, config: Config, load: ArrivalLoad) -> None:
        self._engine, self._files, self._config, self._load = engine, files, config, load
        self._random = np.random.default_rng(load.seed)

    def prompts(self, first: int, count: int) -> list[Request]:
        """Requests with pictures that nobody has seen, from number `first` on."""
        builder, images = self._files.prompt_builder(self._config.media), self._load.images
        found = []
        for number in range(first, first + count):
            pictures = (make_image(self._load.image, (self._load.seed, 6, images * number + index)) for index in range(images))
            parts: list[dict[str, Any]] = [{"type": "image", "image": _file_of(picture.url)} for picture in pictures]
            content = [*parts, {"type": "text", "text": "What is this?"}]
            found.append(builder.chat([{"role": "user", "content": content}]))
        return found

    def measure(self, prompts: Sequence[Request]) -> ArrivalResult:
        """Starts the decodes, lets them run alone for a while, then adds the prompts at their times."""
        writing = {add_greedy(self._engine, self._words(), self._files.max_model_len) for _ in range(self._load.decodes)}
        self._until_all_told(writing)
        quiet = _Gaps()
        for _ in range(_QUIET_ROUNDS):
            quiet.note(self._step(writing), writing)
        gaps, ttfts = _Gaps(), []
        start = time.perf_counter()
        due = deque(zip(arrival_times(len(prompts), self._load.rate, self._load.seed), prompts, strict=True))
        waiting: dict[int, float] = {}
        while due or waiting:
            now = time.perf_counter() - start
            while due and due[0][0] <= now:
                at, prompt = due.popleft()
                waiting[add_greedy(self._engine, prompt, 1)] = start + at
            told = self._step(writing)
            gaps.note(told, writing)
            ttfts += [1000 * (time.perf_counter() - waiting.pop(request)) for request in told if request in waiting]
        for request in writing:
            self._engine.abort(request)
        while self._engine.has_work:
            self._engine.step()
        device = device_name(torch.device(self._engine.executor.facts.device))
        return ArrivalResult(tuple(quiet.gaps), tuple(gaps.gaps), tuple(ttfts), device)

    def _words(self) -> Request:
        return random_prompt(self._random, self._files.spec.text.vocab_size, self._load.context)

    def _until_all_told(self, writing: set[int]) -> None:
        left = set(writing)
        while left:
            left -= set(self._step(writing))

    def _step(self, writing: set[int]) -> list[int]:
        """The requests that were told a token."""
        told = []
        for update in self._engine.step():
            if update.error is not None:
                raise update.error
            if update.completion is not None and update.request_id in writing:
                raise ConfigError(
                    f"An answer reached the longest that the model allows, {self._files.max_model_len} tokens, before the "
                    "last image was answered: lower --arrivals or --context, or raise --rate."
                )
            told += [update.request_id] if update.token_ids else []
        return told


class _Gaps:
    """Milliseconds between one token of an answer and the next."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self._last: dict[int, float] = {}

    def note(self, told: Sequence[int], of: set[int]) -> None:
        now = time.perf_counter()
        for request in told:
            if request in of:
                if request in self._last:
                    self.gaps.append(1000 * (now - self._last[request]))
                self._last[request] = now


def _file_of(url: bytes) -> bytes:
    return pybase64.b64decode(url.partition(b"base64,")[2])


def result_fields(result: ArrivalResult) -> Mapping[str, Any]:
    return {
        **result.figures(),
        "ttfts_ms": [round(value, 3) for value in result.ttfts],
        "tokens_beside": len(result.itls),
    }
