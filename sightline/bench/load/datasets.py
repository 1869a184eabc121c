"""What to ask: samples of a dataset, the same for the same seed, made before the clock starts."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sightline.bench.load.body import Medium, Sample, image_part, text_part, video_part
from sightline.bench.load.custom import read_custom
from sightline.bench.load.images import ImageKind, make_image
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
    output_len: int = 128  # most tokens of an answer
    seed: int = 0
    image: ImageKind = field(default_factory=ImageKind)
    image_count: int = 1
    distinct_images: int | None = None  # the run shows only so many different ones, again and again; None: each is new
    media_position: Literal["first", "last"] = "first"
    video: VideoKind = field(default_factory=VideoKind)
    path: Path | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("The input length", self.input_len, 1),
            ("The output length", self.output_len, 1),
            ("The seed", self.seed, 0),
            ("The image count", self.image_count, 0),
            ("The number of distinct images", self.distinct_images, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}, but must be at least {least}.")
        if self.name == "custom" and self.path is None:
            raise ConfigError("The dataset 'custom' needs --dataset-path: a file with one JSON object per line.")


def make_samples(
    config: DatasetConfig,
    count: int,
    tokens_per_word: float,
    warm_up: bool = False,
    told: Callable[[int], None] = lambda done: None,
) -> list[Sample]:
    """`count` samples; those for warming up are of the same kind, but other ones where the dataset can make them up."""
    numbers = range(_WARM_UP, _WARM_UP + count) if warm_up else range(count)
    if config.name == "custom":
        assert config.path is not None
        return _cycled(read_custom(config.path, config.output_len), count, warm_up)
    if config.name == "mmmu":
        from sightline.bench.load.mmmu import read_mmmu

        return _cycled(read_mmmu(config.path, config.output_len, config.seed, count), count, warm_up)
    if config.name == "image":
        media = _pictures(config, numbers, told)
    elif config.name == "video":
        media = [
            [video_part(clip)]
            for clip in _in_threads(lambda number: make_video(config.video, (config.seed, 2, number)), numbers, told)
        ]
    else:
        media = [[] for _ in numbers]
    texts = [random_text(config.input_len, tokens_per_word, (config.seed, 0, number)) for number in numbers]
    return [
        Sample(user_message(parts, text, config.media_position), config.output_len)
        for parts, text in zip(media, texts, strict=True)
    ]


def user_message(media: list[dict[str, Any]], text: str, position: Literal["first", "last"] = "first") -> list[dict[str, Any]]:
    if not media:
        return [{"role": "user", "content": text}]
    parts = [*media, text_part(text)] if position == "first" else [text_part(text), *media]
    return [{"role": "user", "content": parts}]


def _pictures(config: DatasetConfig, numbers: range, told: Callable[[int], None]) -> list[list[dict[str, Any]]]:
    """The picture parts of each request; pictures that come again are made once."""
    wanted = [number * config.image_count + place for number in numbers for place in range(config.image_count)]
    if config.distinct_images is not None:
        wanted = [picture % config.distinct_images for picture in wanted]
    distinct = list(dict.fromkeys(wanted))
    made = dict(zip(distinct, make_images(config.image, (config.seed, 1), distinct, told), strict=True))
    parts = [image_part(made[picture]) for picture in wanted]
    return [parts[place * config.image_count : (place + 1) * config.image_count] for place in range(len(numbers))]


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


def _cycled(samples: Sequence[Sample], count: int, warm_up: bool) -> list[Sample]:
    """Again from the start when they are used up. Warming up takes the last ones, which are measured only if all are."""
    return [samples[(-1 - place if warm_up else place) % len(samples)] for place in range(count)]
