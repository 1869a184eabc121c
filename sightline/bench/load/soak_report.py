"""What a soak found: the load it was, what the server held before, meanwhile and after, and what is wrong with it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sightline.bench.load.server_metrics import device_in, unbalanced
from sightline.bench.load.statistics import Spread
from sightline.errors import ConfigError

_SETTLED_S, _FEWEST_SAMPLES = 300.0, 6  # memory is flat from then on, judged by so many looks
_MOST_KEPT = 120  # samples in a report
_AGES = (15.0, 30.0, 60.0)  # seconds; processes that live no longer are compared with those of the same age


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
    flat_slack_mb: float = 256.0  # by which memory of a process may differ between two stretches of the time after it settled
    hostile: tuple[Path, ...] = ()  # folders of files that are meant to hurt
    kills: bool = False  # the server's processes are killed meanwhile
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
    api_age_s: float | None = None  # since the process was started
    engine_age_s: float | None = None


@dataclass
class Tally:
    asked: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    ttfts: list[float] = field(default_factory=list)
    output_tokens: int = 0
    left: int = 0  # connections closed in the middle
    refused: int = 0  # hostile questions that got a 4xx
    interrupted: int = 0  # by a kill


@dataclass(frozen=True)
class SoakResult:
    tally: Tally
    before: Holding
    after: Holding
    samples: list[Holding]  # on the way
    complaints: list[str]  # what is wrong; empty if all is well


def complaints(
    config: SoakConfig, tally: Tally, before: Holding, samples: Sequence[Holding], after: Holding, left: Sequence[str]
) -> list[str]:
    found = [f"{count} times: {error}" for error, count in tally.errors.most_common()]
    found += [f"still held when idle: {one}" for one in left]
    for name, then, now, slack in (
        ("memory of the GPU", before.gpu_mb, after.gpu_mb, config.gpu_slack_mb),
        ("memory of the API process", before.api_mb, after.api_mb, config.process_slack_mb),
        ("memory of the engine's process", before.engine_mb, after.engine_mb, config.process_slack_mb + _caches_mb(before)),
    ):
        if then is not None and now is not None and now > then + slack:
            found.append(f"{name} grew from {then:.0f} to {now:.0f} MB")
    found += _odds([*samples, after])
    if config.kills:
        return found
    restarts = [holding.metrics.get("sightline:engine_restarts_total", 0.0) for holding in (before, after)]
    if restarts[1] > restarts[0]:
        found.append(f"the engine was started again {restarts[1] - restarts[0]:g} times")
    return found


def _odds(looks: Sequence[Holding]) -> list[str]:
    """The first look at which the counters did not add up: where processes are killed, each look is at counters of its own."""
    for look in looks:
        if odds := unbalanced(look.metrics):
            return [f"after {look.seconds:.0f} s {odds}"]
    return []


def growth(config: SoakConfig, samples: Sequence[Holding]) -> list[str]:
    """Memory of the processes once the load has settled: no more at the end than at the beginning of that time. Where processes
    are killed, young ones are compared with young ones: each is growing until it has had its first few questions."""
    settled = [sample for sample in samples if sample.seconds >= _SETTLED_S + config.warm_up_s]
    if len(settled) < _FEWEST_SAMPLES:
        return []
    found = []
    for name, looks in (
        ("the API process", [(sample.seconds, sample.api_mb, sample.api_age_s) for sample in settled]),
        ("the engine's process", [(sample.seconds, sample.engine_mb, sample.engine_age_s) for sample in settled]),
    ):
        third = (settled[-1].seconds - settled[0].seconds) / 3
        ages = [_age_band(age) for _, _, age in looks] if config.kills else [0] * len(looks)
        for band in sorted(set(ages)):
            of_age = [(at, held) for (at, held, _), age in zip(looks, ages, strict=True) if age == band and held is not None]
            first = [held for at, held in of_age if at <= settled[0].seconds + third]
            last = [held for at, held in of_age if at >= settled[-1].seconds - third]
            if min(len(first), len(last)) < _FEWEST_SAMPLES // 3:
                continue
            if float(np.median(last)) > float(np.median(first)) + config.flat_slack_mb:
                aged = f" up to {_AGES[band]:g} s after its start" if config.kills and band < len(_AGES) else ""
                found.append(f"memory of {name}{aged} is not flat: {np.median(first):.0f}, later {np.median(last):.0f} MB")
    return found


def _age_band(age: float | None) -> int:
    return len(_AGES) if age is None else sum(age >= limit for limit in _AGES)


def _caches_mb(holding: Holding) -> float:
    """Of the caches, where the engine's process has them: on a CPU, whose memory is given out when it is first filled."""
    if device_in(holding.metrics) != "cpu":
        return 0.0
    names = [f"sightline:engine_memory_bytes{{part={part}}}" for part in ("kv_cache", "embeddings")]
    return sum(holding.metrics.get(name, 0.0) for name in names) / 2**20


def shown(holding: Holding) -> str:
    own = holding.metrics.get("sightline:engine_gpu_bytes")
    parts = (
        ("GPU", holding.gpu_mb),
        ("torch on it", own / 2**20 if own else None),
        ("API", holding.api_mb),
        ("engine", holding.engine_mb),
    )
    return ", ".join(f"{name} {value:.0f} MB" for name, value in parts if value is not None) or "no memory known"


def _memory_of(look: Holding) -> dict[str, float]:
    found = {name: value for name, value in asdict(look).items() if name != "metrics" and value is not None}
    return {name: round(value, 1) for name, value in found.items()}


def result_fields(config: SoakConfig, result: SoakResult) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(config).items() if name not in ("admin_api_key", "hostile")}
    spread = Spread.of(result.tally.ttfts)
    return {
        "settings": settings,
        "asked": dict(result.tally.asked),
        "left": result.tally.left,
        "refused": result.tally.refused,
        "interrupted": result.tally.interrupted,
        "output_tokens": result.tally.output_tokens,
        "ttft_median_ms": spread.median if spread else None,
        "ttft_p99_ms": spread.percentiles[99] if spread else None,
        "errors": dict(result.tally.errors),
        "complaints": result.complaints,
        "before": asdict(result.before),
        "after": asdict(result.after),
        "samples": [_memory_of(sample) for sample in result.samples[:: 1 + len(result.samples) // _MOST_KEPT]],
    }
