"""What the API process spends on a chat request before the engine sees it, by number of images, on one core.

    parse    the JSON body, with the server's own decoder, and its data URLs to bytes
    digest   SHA-256 of each image
    header   format, size and orientation of each image, and the limits on them
    prompt   messages, template, token ids, places of the image rows, positions

Times are the processor's, so that other work on the machine counts little; the time on the clock is kept beside them. Nothing
here depends on whether an image is known: for a known one this is all that is done, a new one is then decoded and encoded by
the engine. Images are JPEGs of about 500 kB, all different.
"""

import base64
import contextlib
import hashlib
import io
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from benchmarks.measure.round_trip import RoundTrip, StreamCost
from benchmarks.measure.schedule_cost import cpu_name
from sightline.config import MediaConfig, ModelConfig
from sightline.media.data_url import EmbeddedFile, data_of
from sightline.media.header import read_image_header
from sightline.media.limits import ByteAllowance, RequestBudget, check_size
from sightline.media.source_names import display_name
from sightline.models.files import ModelFiles, read_model_files
from sightline.prompt.items import make_item
from sightline.server.body_files import parse_with_files
from sightline.server.chat import ChatEndpoint
from sightline.server.chat_prompt import template_messages
from sightline.server.parse import decoder_of
from sightline.types import MediaRef

_DECODER = decoder_of(ChatEndpoint.body, lenient=False)
STAGES = ("parse", "digest", "header", "prompt")
IMAGE_BYTES = 500_000
TARGET_MS = 1.5  # per image
MANY = 8  # images of the requests that show known ones again
_WIDTH, _HEIGHT = 1920, 1080


@dataclass(frozen=True)
class ApiCost:
    """Medians over requests, in milliseconds of the processor per request."""

    images: int
    body_mb: float
    prompt_tokens: int
    stages: dict[str, float]
    total: float  # of the whole request, not the sum of the stages' medians
    slowest: float
    clock: float  # the median of the whole request on the clock

    @property
    def per_image(self) -> float:
        return self.total / self.images


def measure(files: ModelFiles, images: int, repeats: int) -> ApiCost:
    body = make_body(images)
    limits = MediaConfig.for_server(limit_mm_per_prompt={"image": images}, max_request_media_mb=10_000)
    passes = [_handle(body, files, limits) for _ in range(repeats + 2)][2:]  # the first ones warm caches up
    totals = sorted(one.total for one in passes)
    return ApiCost(
        images=images,
        body_mb=len(body) / 1e6,
        prompt_tokens=passes[0].prompt_tokens,
        stages={stage: statistics.median(one.stages[stage] for one in passes) for stage in STAGES},
        total=statistics.median(totals),
        slowest=totals[-1],
        clock=statistics.median(one.clock for one in passes),
    )


class _Pass(NamedTuple):
    """Milliseconds of one request."""

    stages: dict[str, float]
    total: float
    clock: float
    prompt_tokens: int


def _handle(body: bytes, files: ModelFiles, limits: MediaConfig) -> _Pass:
    """One request as the server handles it."""
    stages = dict.fromkeys(STAGES, 0.0)

    @contextlib.contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        stages[name] += 1e3 * (time.thread_time() - start)

    began, clock = time.thread_time(), time.perf_counter()
    with stage("parse"):
        request, by_name = parse_with_files(body, _DECODER, ChatEndpoint().media_urls)
    with stage("prompt"):
        plain, wanted = template_messages(request.messages, files=by_name)
        budget = RequestBudget(limits)
        budget.take_items(medium.kind for medium in wanted)
    refs = []
    for medium in wanted:
        assert isinstance(medium.url, EmbeddedFile) and medium.kind != "pdf"
        name = display_name(medium.url)
        data = data_of(medium.url, ByteAllowance(medium.kind, name, limits, budget))
        with stage("digest"):
            digest = hashlib.sha256(data).digest()
        with stage("header"):
            header = read_image_header(data, name)
            check_size(name, header.width, header.height, limits)
        refs.append(MediaRef(medium.kind, data, digest, header, name))
    with stage("prompt"):
        builder = files.prompt_builder(limits)
        prompt, _ = builder.render(plain)
        made = builder.assemble(prompt, [make_item(ref, files.processor, budget) for ref in refs])
    return _Pass(stages, 1e3 * (time.thread_time() - began), 1e3 * (time.perf_counter() - clock), len(made))


# ---- What is measured with


def make_body(images: int, max_tokens: int = 64) -> bytes:
    """A chat body with so many different images and a question, as clients send it."""
    parts: list[dict[str, object]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"}}
        for data in _jpegs(images)
    ]
    parts.append({"type": "text", "text": "What do these images have in common?"})
    message = {"role": "user", "content": parts}
    return msgspec.json.encode({"model": None, "messages": [message], "max_completion_tokens": max_tokens, "stream": True})


def _jpegs(count: int) -> list[bytes]:
    """A smooth picture with noise, whose amount is chosen so that the file has about the size that is wanted."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0:_HEIGHT, 0:_WIDTH]
    smooth = 128 + 60 * np.sin(rows / 70)[..., None] * np.cos(columns[..., None] / np.array([50, 90, 130]))
    noise = random.standard_normal((_HEIGHT, _WIDTH, 1))
    low, high = 0.0, 60.0
    for _ in range(8):
        amount = (low + high) / 2
        size = len(_encoded(smooth + amount * noise))
        low, high = (amount, high) if size < IMAGE_BYTES else (low, amount)
    picture = np.clip(smooth + low * noise, 0, 255)
    return [_encoded(np.roll(picture, 16 * number, axis=1)) for number in range(count)]


def _encoded(pixels: NDArray[np.float64]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


@contextlib.contextmanager
def model_files(model: ModelConfig) -> Iterator[ModelFiles]:
    """Of the model that is named; without a name, of a Qwen3-VL-8B with no weights, whose prompts are of ordinary length."""
    if model.model:
        yield read_model_files(model, MediaConfig())
        return
    from sightline.models.create import create_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        create_checkpoint(Path(folder) / "qwen3-vl-8b", "qwen3-vl", "8b", weights=False)
        yield read_model_files(ModelConfig(model=f"{folder}/qwen3-vl-8b", load_format="dummy"), MediaConfig())


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps this process on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def report(
    costs: Sequence[ApiCost],
    repeats: int,
    trip: RoundTrip | None = None,
    again: tuple[RoundTrip, RoundTrip] | None = None,
    streams: Sequence[StreamCost] = (),
    conversation: dict[str, object] | None = None,
) -> dict[str, object]:
    """What the JSON file holds. again: of known images, their files sent each time and kept."""
    over_http: dict[str, object] = {}
    if trip is not None:
        over_http["round_trip"] = _trip_fields(trip)
    if again is not None:
        sent, kept = (_trip_fields(each) for each in again)
        over_http["known_images"] = {"images": MANY, "sent_each_time": sent, "kept": kept}
    if conversation is not None:
        over_http["conversation"] = conversation
    if streams:
        over_http["streams"] = [
            {
                "streams": cost.streams,
                "processor_us_per_token": round(cost.processor_us, 2),
                "tokens_per_second_per_core": round(cost.tokens_per_second),
            }
            for cost in streams
        ]
    return {
        "cpu": cpu_name(),
        "cores_used": 1,
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "msgspec": msgspec.__version__,
        "image": f"JPEG {_WIDTH}x{_HEIGHT}, about {IMAGE_BYTES // 1000} kB",
        "repeats": repeats,
        "target_ms_per_image": TARGET_MS,
        "rows": [
            {
                "images": cost.images,
                "body_mb": round(cost.body_mb, 2),
                "prompt_tokens": cost.prompt_tokens,
                **{f"{stage}_ms": round(cost.stages[stage], 3) for stage in STAGES},
                **{f"{stage}_ms_per_image": round(cost.stages[stage] / cost.images, 4) for stage in STAGES},
                "total_ms": round(cost.total, 3),
                "total_ms_per_image": round(cost.per_image, 3),
                "slowest_total_ms": round(cost.slowest, 3),
                "total_on_the_clock_ms": round(cost.clock, 3),
                "within_target": cost.per_image < TARGET_MS,
            }
            for cost in costs
        ],
        **over_http,
    }


def _trip_fields(trip: RoundTrip) -> dict[str, object]:
    names = ("tenth", "median", "ninth_tenth")
    stages = {
        f"{name}_ms": {which: round(value, 3) for which, value in zip(names, getattr(trip, name), strict=True)}
        for name in ("send", "answer", "ttft")
    }
    return {**stages, "processor_ms": round(trip.processor_ms, 3)}
