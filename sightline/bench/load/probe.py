"""`sightline bench probe`: how many new pictures one request may have, and how long they take.

Twice as many each time until one request fails, then by halving the range in between, so the largest number is exact as long as
a server that takes n pictures takes fewer, too. Growing, each request shows the pictures of the one before it and a new one, up
to the first that fails: a server that remembers encodes the new one only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sightline.bench.load.body import Medium, RequestOptions, RequestSample, image_part, request_body
from sightline.bench.load.datasets import make_images, user_message
from sightline.bench.load.images import ImageKind
from sightline.bench.load.machine import gpu_memory_mb
from sightline.bench.load.server_timings import encoded_items, tower_ms, with_timings
from sightline.bench.load.tables import Cell, table
from sightline.bench.load.target import Target, TargetConfig
from sightline.bench.load.texts import random_text
from sightline.errors import ConfigError


@dataclass(frozen=True)
class ProbeConfig:
    target: TargetConfig = field(default_factory=TargetConfig)
    images: tuple[ImageKind, ...] = (ImageKind("720p"), ImageKind("1080p"), ImageKind("2k"))
    max_images: int = 64
    counts: tuple[int, ...] = ()  # exactly these instead
    growing: bool = False  # a request shows what the one before it showed, too
    input_len: int = 32
    output_len: int = 16
    warm_up: bool = True
    gpu_memory: bool = False  # whether the server is on this machine and its GPU's memory is to be noted
    seed: int = 0
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (
            ("The most images to try", self.max_images),
            ("The input length", self.input_len),
            ("The output length", self.output_len),
            *(("A number of images", count) for count in self.counts),
        ):
            if value < 1:
                raise ConfigError(f"{name} is {value}, but must be at least 1.")


@dataclass(frozen=True)
class Probe:
    resolution: str
    images: int
    ttft_ms: float | None
    latency_ms: float | None
    prompt_tokens: int | None
    tower_ms: float | None
    error: str | None
    cached_tokens: int | None = None
    encoded_items: int | None = None
    gpu_memory_mb: float | None = None  # of this machine's first GPU, after the answer; the server never gives memory back


async def run_probe(config: ProbeConfig, target: Target, tokens_per_word: float, told: Callable[[Probe], None]) -> list[Probe]:
    found = []
    for kind in config.images:
        asker = _Asker(config, kind, target, tokens_per_word)
        if config.warm_up:
            await asker.ask(1)
            asker.forget()
        search = _Search(config.max_images) if not (config.counts or config.growing) else None
        counts = iter(sorted(set(config.counts)) or range(1, config.max_images + 1))
        while (count := search.next() if search else next(counts, None)) is not None:
            probe = await asker.ask(count)
            if search:
                search.note(count, probe.error is None)
            found.append(probe)
            told(probe)
            if config.growing and probe.error is not None:
                break
    return sorted(found, key=lambda probe: ([kind.resolution for kind in config.images].index(probe.resolution), probe.images))


class _Search:
    """Which number to try next."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._works = 0
        self._fails: int | None = None

    def next(self) -> int | None:
        if self._works == self._most or self._fails == self._works + 1:
            return None
        if self._fails is None:
            return min(2 * self._works or 1, self._most)
        return (self._works + self._fails) // 2

    def note(self, count: int, worked: bool) -> None:
        if worked:
            self._works = count
        else:
            self._fails = count


class _Asker:
    """Requests with pictures that the server has never seen; growing, after those that it was shown last."""

    def __init__(self, config: ProbeConfig, kind: ImageKind, target: Target, tokens_per_word: float) -> None:
        self._config, self._kind, self._target = config, kind, target
        self._per_word = tokens_per_word
        self._used = 0
        self._shown: list[Medium] = []

    def forget(self) -> None:
        self._shown = []

    async def ask(self, count: int) -> Probe:
        config = self._config
        if not config.growing:
            self.forget()
        new = range(self._used, self._used + count - len(self._shown))
        pictures = self._shown = [*self._shown, *make_images(self._kind, (config.seed, 4), new)]
        text = random_text(config.input_len, self._per_word, (config.seed, 4, self._used))
        self._used = new.stop
        sample = RequestSample(user_message([image_part(picture) for picture in pictures], text), config.output_len)
        options = RequestOptions(self._target.model, True, False, with_timings(config.extra_body, self._target))
        answer = await self._target.ask(request_body(sample, options), stream=True)
        worked = answer.failure is None
        return Probe(
            resolution=self._kind.resolution,
            images=count,
            ttft_ms=1000 * answer.ttft if worked and answer.ttft is not None else None,
            latency_ms=1000 * answer.latency if worked else None,
            prompt_tokens=answer.prompt_tokens,
            tower_ms=tower_ms(answer) if worked else None,
            error=f"{answer.failure.kind}: {answer.failure.message}" if answer.failure is not None else None,
            cached_tokens=answer.cached_tokens if worked else None,
            encoded_items=encoded_items(answer) if worked else None,
            gpu_memory_mb=gpu_memory_mb() if config.gpu_memory else None,
        )


def summary_table(probes: Sequence[Probe]) -> str:
    """A row per size: the most images that one request was answered for, what that one took, and what ended the search."""
    rows: list[list[Cell]] = []
    for resolution in dict.fromkeys(probe.resolution for probe in probes):
        tried = [probe for probe in probes if probe.resolution == resolution]
        most = largest(probes, resolution)
        last = next((probe for probe in tried if probe.images == most), None)
        failed = next((probe.error.partition(":")[0] for probe in tried if probe.error is not None), "no limit found")
        times = [last.ttft_ms, last.tower_ms, last.latency_ms, last.prompt_tokens] if last else [None] * 4
        rows.append([resolution, most, *times, failed])
    return table(["resolution", "images", "TTFT, ms", "tower, ms", "E2E, ms", "prompt tokens", "ended by"], rows)


def largest(probes: Sequence[Probe], resolution: str) -> int:
    """The most images that were answered; 0 if none."""
    return max((probe.images for probe in probes if probe.resolution == resolution and probe.error is None), default=0)


def probe_fields(probe: Probe) -> dict[str, Any]:
    return {
        "resolution": probe.resolution,
        "images": probe.images,
        "ttft_ms": probe.ttft_ms,
        "latency_ms": probe.latency_ms,
        "prompt_tokens": probe.prompt_tokens,
        "tower_ms": probe.tower_ms,
        "error": probe.error,
        "cached_tokens": probe.cached_tokens,
        "encoded_items": probe.encoded_items,
        "gpu_memory_mb": probe.gpu_memory_mb,
    }
