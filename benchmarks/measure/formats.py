"""What decoding a 1080p screen costs a core, by format: as the engine does it, and by Pillow alone; of PNG by stage, too.

Times are the processor's, of one thread. Which of the two decodes a file follows from the file (media/png_pixels.py).
"""

import io
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import PIL
from PIL import Image, features

from benchmarks.measure.schedule_cost import cpu_name
from sightline.bench.load.images import parse_resolution
from sightline.bench.load.screens import screen
from sightline.config import MediaConfig
from sightline.host_memory import keep_freed_memory
from sightline.media import decode, png_pixels
from sightline.media.decode import decode_image
from sightline.media.source import load_image
from sightline.types import MediaRef

STAGES = ("inflate", "store", "unfilter", "colours")  # of a PNG that Pillow does not decode
_FUNCTIONS = {"_inflated": "inflate", "_stored_png": "store", "_unfiltered": "unfilter", "_in_rgb": "colours"}
_PILLOW_ALONE = "pillow"


@dataclass(frozen=True)
class FormatCost:
    """Milliseconds of a core, medians."""

    name: str
    kilobytes: float
    pillow_ms: float
    ours_ms: float
    is_ours: bool  # or decoded by Pillow in both
    resize_ms: float  # Pillow's bicubic filter, to what a model sees; the engine's is on the device
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.pillow_ms / self.ours_ms


def files(resolution: str) -> dict[str, bytes]:
    width, height = parse_resolution(resolution)
    image = Image.fromarray(screen(np.random.default_rng((width, height)), width, height))
    grey = image.convert("L")
    kinds: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "PNG, RGB": (image, "PNG", {}),
        "PNG, RGBA": (image.convert("RGBA"), "PNG", {}),
        "PNG, palette": (image.quantize(256), "PNG", {}),
        "PNG, grey": (grey, "PNG", {}),
        "PNG, grey and alpha": (image.convert("LA"), "PNG", {}),
        "PNG, grey, 16 bits": (Image.fromarray(np.asarray(grey, np.uint16) * 257), "PNG", {}),
        "PNG, RGB, level 1": (image, "PNG", {"compress_level": 1}),
        "WebP, lossless": (image, "WEBP", {"lossless": True}),
        "WebP, quality 85": (image, "WEBP", {"quality": 85}),
        "JPEG, quality 90": (image, "JPEG", {"quality": 90}),
    }
    made = {}
    for name, (picture, form, options) in kinds.items():
        buffer = io.BytesIO()
        picture.save(buffer, form, **options)
        made[name] = buffer.getvalue()
    return made


def measure(resolution: str, repeats: int) -> list[FormatCost]:
    keep_freed_memory()  # as the engine's process does
    png_pixels.get_ready()
    return [_cost(name, load_image(data, MediaConfig()), repeats) for name, data in files(resolution).items()]


def _cost(name: str, ref: MediaRef, repeats: int) -> FormatCost:
    stages: dict[str, list[float]] = {}
    pixels = decode_image(ref)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    size = (image.width // 32 * 32, image.height // 32 * 32)
    found, kept = {}, png_pixels.png_pixels
    ways: dict[str, Callable[..., Any]] = {_PILLOW_ALONE: lambda *_: None, "ours": kept}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):  # in turn, so that other work on the machine meets both
        for way, function in ways.items():
            setattr(decode, "png_pixels", function)  # noqa: B010 the module does not export it
            try:
                start = time.thread_time()
                found[way] = decode_image(ref)
                times[way].append(time.thread_time() - start)
            finally:
                setattr(decode, "png_pixels", kept)  # noqa: B010
    if not np.array_equal(found[_PILLOW_ALONE], found["ours"]):
        raise AssertionError(f"The pixels of {name} are not Pillow's.")
    is_ours = _in_stages(ref, repeats, stages)
    resizes = [_milliseconds(lambda: image.resize(size, Image.Resampling.BICUBIC)) for _ in range(max(repeats // 4, 1))]
    return FormatCost(
        name=name,
        kilobytes=len(ref.data) / 1e3,
        pillow_ms=1e3 * statistics.median(times[_PILLOW_ALONE]),
        ours_ms=1e3 * statistics.median(times["ours"]),
        is_ours=is_ours,
        resize_ms=statistics.median(resizes),
        stages={stage: statistics.median(values) for stage, values in stages.items()},
    )


def _in_stages(ref: MediaRef, repeats: int, stages: dict[str, list[float]]) -> bool:
    """Notes each stage of a decode that is ours; whether it is."""

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            start = time.thread_time()
            made = function(*arguments)
            stages.setdefault(stage, []).append(1e3 * (time.thread_time() - start))
            return made

        return wrapped

    before = {name: getattr(png_pixels, name) for name in _FUNCTIONS}
    try:
        for name, stage in _FUNCTIONS.items():
            setattr(png_pixels, name, timed(stage, before[name]))
        for _ in range(repeats):
            decode_image(ref)
    finally:
        for name, function in before.items():
            setattr(png_pixels, name, function)
    return "colours" in stages


def _milliseconds(function: Callable[[], object]) -> float:
    start = time.thread_time()
    function()
    return 1e3 * (time.thread_time() - start)


def table(costs: list[FormatCost]) -> str:
    lines = [
        "milliseconds of a core              kB   Pillow     ours    times"
        + "".join(f"{stage:>10s}" for stage in STAGES)
        + "    resize"
    ]
    for cost in costs:
        split = "".join(f"{cost.stages[stage]:10.2f}" if stage in cost.stages else f"{'-':>10s}" for stage in STAGES)
        ours = f"{cost.ours_ms:9.2f}{cost.ratio:8.1f}x" if cost.is_ours else f"{'Pillow':>9s}{'-':>9s}"
        lines.append(f"{cost.name:26s}{cost.kilobytes:12.0f}{cost.pillow_ms:9.2f}{ours}{split}{cost.resize_ms:10.2f}")
    return "\n".join(lines)


def as_json(costs: list[FormatCost], resolution: str, repeats: int) -> dict[str, object]:
    return {
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "zlib_ng_of_pillow": features.version("zlib_ng"),
        "webp_of_pillow": features.version("webp"),
        "picture": f"{resolution}, screen",
        "repeats": repeats,
        "formats": [{**asdict(cost), "times": round(cost.ratio, 2)} for cost in costs],
    }
