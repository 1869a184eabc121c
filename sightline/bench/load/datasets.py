"""What to ask: samples of a dataset, the same for the same seed, made before the clock starts."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sightline.bench.load.body import Medium, RequestSample, image_part, text_part, video_part
from sightline.bench.load.custom import read_custom
from sightline.bench.load.images import ImageKind, make_image
from sightline.bench.load.ranges import IntRange, as_range
from sightline.bench.load.texts import random_text
from sightline.bench.load.videos import VideoKind, make_video
from sightline.errors import ConfigError

DatasetName = Literal["image", "text", "video", "mmmu", "custom"]
DATASETS: tuple[DatasetName, ...] = ("image", "text", "video", "mmmu", "custom")
_WARM_UP = 1 << 20  # numbers of warm-up requests begin here, so that a cache does not know the measured ones


@dataclass(frozen=True)
class DatasetConfig:
    name: DatasetName = "image"
    input_len: int = 128  # text tokens per request
    output_len: int | IntRange = 128  # most tokens of an answer; a range is drawn from for each request, as that of pictures
    range_ratio: float = 1.0  # lengths that are no range are drawn for each request, from this share of them to all of them
    seed: int = 0
    image: ImageKind = field(default_factory=ImageKind)
    image_count: int | IntRange = 1
    distinct_images: int | None = None  # the run shows only so many different ones, again and again; None: each is new
    media_position: Literal["first", "last"] = "first"
    video: VideoKind = field(default_factory=VideoKind)
    path: Path | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("The input length", self.input_len, 1),
            ("The output length", as_range(self.output_len).low, 1),
            ("The seed", self.seed, 0),
            ("The image count", as_range(self.image_count).low, 0),
            ("The number of distinct images", self.distinct_images, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}, but must be at least {least}.")
        if not 0.0 <= self.range_ratio <= 1.0:
            raise ConfigError(f"The range ratio is {self.range_ratio}, but must be from 0 to 1.")
        if self.name == "custom" and self.path is None:
            raise ConfigError("The dataset 'custom' needs --dataset-path: a file with one JSON object per line.")
        if self.name in ("custom", "mmmu") and not as_range(self.output_len).is_one:
            raise ConfigError(f"The output length is {self.output_len}, but the dataset {self.name!r} takes one number.")


@dataclass(frozen=True)
class RunSamples:
    measured: list[RequestSample]
    warm_ups: list[RequestSample]
    shortage: str | None = None  # what to tell where the dataset has not as many as were asked for


def make_run(
    config: DatasetConfig,
    count: int,
    warm_ups: int,
    tokens_per_word: float,
    told: Callable[[int], None] = lambda done: None,
) -> RunSamples:
    """`count` samples to measure and some to warm up with. Questions of mmmu are never measured twice."""
    if config.name == "mmmu":
        from sightline.bench.load.mmmu import read_mmmu

        return share_out(
            read_mmmu(config.path, as_range(config.output_len).low, config.seed, count + warm_ups), count, warm_ups
        )
    measured = make_samples(config, count, tokens_per_word, told=told)
    return RunSamples(measured, make_samples(config, warm_ups, tokens_per_word, warm_up=True))


def share_out(samples: Sequence[RequestSample], count: int, warm_ups: int) -> RunSamples:
    """Those that are measured come first; warming up takes others while there are any."""
    measured, others = list(samples[:count]), list(samples[count:])
    said = []
    if len(measured) < count:
        said.append(f"The dataset has {len(samples)} questions: {len(measured)} requests are sent, not {count}.")
    if len(others) < warm_ups:
        said.append("No other questions are left to warm up with: some that are measured are asked before.")
        others = _cycled(samples, warm_ups, warm_up=True)
    return RunSamples(measured, others, " ".join(said) or None)


def make_samples(
    config: DatasetConfig,
    count: int,
    tokens_per_word: float,
    warm_up: bool = False,
    told: Callable[[int], None] = lambda done: None,
) -> list[RequestSample]:
    """`count` samples of any dataset but mmmu; those for warming up are other ones where the dataset can make them up."""
    numbers = range(_WARM_UP, _WARM_UP + count) if warm_up else range(count)
    if config.name == "custom":
        assert config.path is not None
        return _cycled(read_custom(config.path, as_range(config.output_len).low), count, warm_up)
    if config.name == "image":
        media = _pictures(config, numbers, told)
    elif config.name == "video":
        media = [
            [video_part(clip)]
            for clip in _in_threads(lambda number: make_video(config.video, (config.seed, 2, number)), numbers, told)
        ]
    else:
        media = [[] for _ in numbers]
    lengths = [_lengths(config, number) for number in numbers]
    texts = [
        random_text(input_len, tokens_per_word, (config.seed, 0, number))
        for number, (input_len, _) in zip(numbers, lengths, strict=True)
    ]
    return [
        RequestSample(user_message(parts, text, config.media_position), output_len)
        for parts, text, (_, output_len) in zip(media, texts, lengths, strict=True)
    ]


def _lengths(config: DatasetConfig, number: int) -> tuple[int, int]:
    """Tokens of the text and of the answer of one request, as sglang.bench_serving draws them."""
    random = np.random.default_rng((config.seed, 3, number))
    answer = as_range(config.output_len)
    ends = [(max(1, int(end * config.range_ratio)), end) for end in (config.input_len, answer.high)]
    if not answer.is_one:
        ends[1] = (answer.low, answer.high)
    input_len, output_len = random.integers([low for low, _ in ends], [high + 1 for _, high in ends])
    return int(input_len), int(output_len)


def user_message(media: list[dict[str, Any]], text: str, position: Literal["first", "last"] = "first") -> list[dict[str, Any]]:
    if not media:
        return [{"role": "user", "content": text}]
    parts = [*media, text_part(text)] if position == "first" else [text_part(text), *media]
    return [{"role": "user", "content": parts}]


def _pictures(config: DatasetConfig, numbers: range, told: Callable[[int], None]) -> list[list[dict[str, Any]]]:
    """The picture parts of each request; pictures that come again are made once."""
    counts = [_picture_count(config, number) for number in numbers]
    most = as_range(config.image_count).high
    wanted = [[number * most + index for index in range(count)] for number, count in zip(numbers, counts, strict=True)]
    if config.distinct_images is not None:
        wanted = [[picture % config.distinct_images for picture in pictures] for pictures in wanted]
    distinct = list(dict.fromkeys(picture for pictures in wanted for picture in pictures))
    made = dict(zip(distinct, make_images(config.image, (config.seed, 1), distinct, told), strict=True))
    return [[image_part(made[picture]) for picture in pictures] for pictures in wanted]


def _picture_count(config: DatasetConfig, number: int) -> int:
    return as_range(config.image_count).draw(np.random.default_rng((config.seed, 4, number)))


def make_images(
    kind: ImageKind, seed: tuple[int, int], numbers: Sequence[int], told: Callable[[int], None] = lambda done: None
) -> list[Medium]:
    """Pictures by number. The seed is that of the run and that of its purpose: two purposes never share a picture."""
    return _in_threads(lambda number: make_image(kind, (*seed, number)), numbers, told)


def _in_threads(make: Callable[[int], Medium], numbers: Sequence[int], told: Callable[[int], None]) -> list[Medium]:
    made: list[Medium] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # drawing and encoding run outside Python's lock
        for item in (make(number) for number in numbers[:1]):
            check_memory(len(item.url) * len(numbers), len(numbers))
            made.append(item)
        for item in pool.map(make, numbers[1:]):
            made.append(item)
            told(len(made))
    return made


def check_memory(wanted: int, count: int, free: int | None = None) -> None:
    """All media of a run are in memory before the clock starts; refuses what would not fit, in bytes."""
    if free is None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > 0.8 * free:
        raise ConfigError(
            f"{count} images or videos would take {wanted / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free: "
            "ask for fewer or smaller ones, or repeat some with --distinct-images."
        )


def _cycled(samples: Sequence[RequestSample], count: int, warm_up: bool) -> list[RequestSample]:
    """Again from the start when they are used up. Warming up takes the last ones, which are measured only if all are."""
    return [samples[(-1 - index if warm_up else index) % len(samples)] for index in range(count)]
