"""Where the time to a request's first token goes, stage by stage, with torch definitions (before) and with kernels (after).

The stages from bytes to embedding rows are marked inside one pass through the same functions that the engine calls, nothing
waiting between them; the language model's share is what the engine itself notes. Beside them the same request is asked of the
engine, caches emptied, and timed from messages to first token: what the stages do not explain is `other`. It is below zero
where the engine overlaps what the pass does in sequence.
"""

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from benchmarks.measure.decoded_patches import decoded_patches
from benchmarks.measure.stage_floors import STAGES, Rates, StageLoad, stage_floors
from benchmarks.measure.stage_spans import Spans
from sightline.bench.load.images import parse_resolution, photo
from sightline.config import Config
from sightline.encoder.gpu_decode import DecodedBatch, GpuFiles
from sightline.encoder.patch_maker import PatchMaker
from sightline.encoder.patches import cut_stills, upload
from sightline.engine.engine import Engine
from sightline.engine.executor import local_worker
from sightline.engine.load import load_engine
from sightline.errors import ConfigError
from sightline.media.decode import decode_image
from sightline.models.files import ModelFiles, read_model_files
from sightline.models.patch_tower import PatchTower
from sightline.ops.dispatch import definitions_only
from sightline.ops.position_grid import add_position_grid
from sightline.ops.rotary import vision_rotary
from sightline.processors import choose_decode_threads
from sightline.sampling_params import resolve_sampling
from sightline.submission import Submission
from sightline.timing import StageClock
from sightline.types import MediaItem, Message, Request, SamplingParams
from sightline.worker.worker import Worker

T = TypeVar("T")

_WARMUPS = 2
_PAUSE_CYCLES = 200_000_000  # of the GPU's clock: about 0.1 s, longer than the host needs to launch a tower
_JPEG_QUALITY = 90
_QUESTION = "What do these pictures show?"


@dataclass(frozen=True)
class RequestImages:
    """The pictures of one request."""

    name: str
    sizes: tuple[tuple[int, int], ...]  # width and height of each


@dataclass(frozen=True)
class StageMilliseconds:
    """Milliseconds, medians."""

    stages: Mapping[str, float]
    ttft_ms: float
    ttfts_ms: tuple[float, ...]  # of each run, to see the noise
    pixels_ms: float  # bytes to patches in one piece, as the engine runs it: images side by side
    vision_ms: float  # patches to embedding rows in one piece, as the engine runs it

    @property
    def other_ms(self) -> float:
        return self.ttft_ms - sum(self.stages.values())


@dataclass(frozen=True)
class StageCost:
    name: str
    images: int
    load: StageLoad
    before: StageMilliseconds
    after: StageMilliseconds
    floors: Mapping[str, float]  # milliseconds by stage


@dataclass(frozen=True)
class _Run:
    """Milliseconds of one run; the fields as in StageTimes."""

    stages: Mapping[str, float]
    ttft_ms: float
    pixels_ms: float
    vision_ms: float


def _medians(runs: Sequence[_Run]) -> StageMilliseconds:
    return StageMilliseconds(
        stages={stage: statistics.median(run.stages.get(stage, 0.0) for run in runs) for stage in STAGES},
        ttft_ms=statistics.median(run.ttft_ms for run in runs),
        ttfts_ms=tuple(run.ttft_ms for run in runs),
        pixels_ms=statistics.median(run.pixels_ms for run in runs),
        vision_ms=statistics.median(run.vision_ms for run in runs),
    )


def make_shapes(sizes: Sequence[str], counts: Sequence[int], mixed: bool) -> list[RequestImages]:
    """A request for each size and each number of images; `mixed`, one for each number, whose images have the sizes in turn."""
    for count in counts:
        if count < 1:
            raise ConfigError(f"--images is {count}, but must be at least 1.")
    parsed = {size.lower(): _parse_size(size) for size in sizes}
    groups = [list(parsed)] if mixed else [[name] for name in parsed]
    found = []
    for names in groups:
        for count in counts:
            name = "+".join(names) if count == 1 else f"{count}x{'+'.join(names)}"
            found.append(RequestImages(name, tuple(parsed[names[number % len(names)]] for number in range(count))))
    return found


def _parse_size(text: str) -> tuple[int, int]:
    """Width and height; a lone number is a square."""
    return parse_resolution(f"{text}x{text}" if text.isdecimal() else text)


class StageBench:
    """A loaded model and the requests to ask of it."""

    def __init__(self, config: Config, shapes: Sequence[RequestImages], repeats: int, rates: Rates) -> None:
        if repeats < 1:
            raise ConfigError(f"--repeats is {repeats}, but must be at least 1.")
        self.config, self.repeats, self.rates = config, repeats, rates
        self.files = read_model_files(config.model, config.media)
        _ = self.files.spec.patch_tower  # a family with a tower of its own is refused before anything is loaded
        self._messages = {shape.name: _messages(shape) for shape in shapes}
        # Prompts are known before weights are read, so one that is too long is refused at once.
        longest = max(len(self._request(messages)) for messages in self._messages.values())
        self.engine = _load(config, self.files, longest)
        self._sampling = resolve_sampling(
            SamplingParams(max_tokens=1, temperature=0), self.files.defaults.sampling, self.files.spec.text.vocab_size
        )
        self._decoders = ThreadPoolExecutor(choose_decode_threads(config.engine.decode_threads))

    def close(self) -> None:
        self._decoders.shutdown()
        self.engine.close()

    @property
    def worker(self) -> Worker:
        return local_worker(self.engine.executor)

    @property
    def device(self) -> torch.device:
        return self.worker.device

    @property
    def dtype(self) -> torch.dtype:
        return self.worker.arena.rows.dtype

    @property
    def decoder(self) -> str:
        gpu = self.worker.gpu_decoder
        return "Pillow on the CPU" if gpu is None else gpu.name

    def measure(self, shape: RequestImages) -> StageCost:
        messages = self._messages[shape.name]
        request = self._request(messages)
        before, after = [], []
        for _ in range(_WARMUPS + self.repeats):  # in turn, so that a machine that slows down slows both
            with definitions_only():
                before.append(self._run(messages, request.items))
            after.append(self._run(messages, request.items))
        vision = self.files.spec.patch_tower
        patch, compact = vision.patch_embed, self.config.engine.compact_patches
        load = StageLoad(
            pixels=sum(width * height for width, height in shape.sizes),
            grids=tuple(item.grid for item in request.items),
            prompt_tokens=len(request),
            features=patch.compact_width if compact else patch.full_width,
            itemsize=self.dtype.itemsize,
        )
        floors = stage_floors(vision, self.files.spec.text, load, self.rates)
        return StageCost(shape.name, len(shape.sizes), load, _medians(before[_WARMUPS:]), _medians(after[_WARMUPS:]), floors)

    def _run(self, messages: Sequence[Message], items: Sequence[MediaItem]) -> _Run:
        stages = self._pass(items)
        ttft_ms, timings = self._ask(messages)
        maker, encodes = self._maker(), self.worker.encodes
        pixels_ms, patches = self._timed(lambda: decoded_patches(items, maker, self._decoders, StageClock()))
        vision_ms, _ = self._timed(lambda: encodes.encode_patches(items, patches))
        return _Run({**stages, "prefill": 1000 * timings["prefill"]}, ttft_ms, pixels_ms, vision_ms)

    def _maker(self) -> PatchMaker:
        compact = self.config.engine.compact_patches
        return PatchMaker(self.files.processor, self.device, self.dtype, compact, self.worker.gpu_decoder)

    def _timed(self, run: Callable[[], T]) -> tuple[float, T]:
        """Milliseconds from call to completion, and the result."""
        self._wait()
        start = time.perf_counter()
        result = run()
        self._wait()
        return 1000 * (time.perf_counter() - start), result

    def _keep_busy(self) -> None:
        """Gives the device a pause to work off, so that what follows is queued before it begins: stages then last as long as
        the device takes for them, as in a captured graph, and no wait for the host is among them."""
        if self.device.type == "cuda":
            torch.cuda._sleep(_PAUSE_CYCLES)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.inference_mode()
    def _pass(self, items: Sequence[MediaItem]) -> dict[str, float]:
        """Bytes to embedding rows, each stage marked: milliseconds by stage."""
        vision, image = self.worker.model.vision, self.files.processor.image
        assert isinstance(vision, PatchTower)
        compact = self.config.engine.compact_patches
        spans = Spans(self.device)
        self._wait()
        decoded = self._decoded(items, spans)
        self._keep_busy()
        with spans.stage("resize_patchify"):
            made: dict[int, torch.Tensor] = {}
            for equal in decoded:
                cut_all = cut_stills(equal.frames, items[equal.indices[0]], image, self.dtype, compact)
                made |= dict(zip(equal.indices, cut_all, strict=True))
            patches = [made[index] for index in range(len(items))]
        with spans.stage("rotary"):  # where patches stand
            batch = vision.make_batch(patches, [item.grid for item in items])
        with _parts_marked(vision, spans), spans.stage("blocks"):  # what is no part with a name of its own
            vision(batch)
        self._wait()
        found = spans.milliseconds()
        for stage in STAGES:
            if stage not in found and stage != "prefill" and (stage != "position_embed" or vision.position_table is not None):
                raise RuntimeError(f"The tower has no {STAGES[stage]} where this benchmark looks for it.")
        return found

    def _decoded(self, items: Sequence[MediaItem], spans: Spans) -> list[DecodedBatch]:
        """Pixels on the device: those that the GPU decodes in batches, the others each by itself."""
        gpu, files = self.worker.gpu_decoder, GpuFiles()
        jpegs = [index for index, item in enumerate(items) if gpu is not None and files.takes(item.ref)]
        with spans.stage("decode"):
            found = gpu.decode([items[index].ref for index in jpegs]) if gpu is not None and jpegs else []
            batches = [DecodedBatch([jpegs[number] for number in batch.indices], batch.frames) for batch in found]
            others = sorted(set(range(len(items))) - {index for batch in batches for index in batch.indices})
            several = self._decoders.map if len(others) > 1 else map
            pixels = list(several(decode_image, [items[index].ref for index in others]))
        with spans.stage("upload"):
            return batches + [
                DecodedBatch([index], upload(one[None], self.device)) for index, one in zip(others, pixels, strict=True)
            ]

    def _ask(self, messages: Sequence[Message]) -> tuple[float, Mapping[str, float]]:
        """Milliseconds from messages to first token, with nothing cached, and what the engine noted."""
        self.engine.flush()
        self._wait()
        clock = StageClock()
        start = time.perf_counter()
        request = self._request(messages, clock)
        self.engine.add(Submission(request, self._sampling, seconds=clock.seconds))
        while True:
            for update in self.engine.step():
                if update.error is not None:
                    raise update.error
                if update.completion is not None:
                    return 1000 * (time.perf_counter() - start), update.completion.timings

    def _request(self, messages: Sequence[Message], clock: StageClock | None = None) -> Request:
        return self.files.prompt_builder(self.config.media).chat(messages, clock=clock)


def _parts_marked(vision: PatchTower, spans: Spans) -> contextlib.ExitStack:
    """Inside, the tower's forward pass says when it begins and ends its parts."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(spans.module(vision.patch_embed, "patch_embed"))
        if vision.patch_norm is not None:
            stack.enter_context(spans.module(vision.patch_norm, "patch_embed"))
        stack.enter_context(spans.op(add_position_grid, "position_embed"))
        stack.enter_context(spans.op(vision_rotary, "rotary"))
        for merger in (vision.merger, *vision.deepstack_mergers):
            stack.enter_context(spans.module(merger, "mergers"))
        return stack.pop_all()


def _messages(shape: RequestImages) -> list[Message]:
    content: list[dict[str, Any]] = []
    for number, (width, height) in enumerate(shape.sizes):
        buffer = io.BytesIO()
        pixels = photo(np.random.default_rng([width, height, number]), width, height)
        Image.fromarray(pixels).save(buffer, "jpeg", quality=_JPEG_QUALITY)
        content.append({"type": "image", "image": buffer.getvalue()})
    return [{"role": "user", "content": [*content, {"type": "text", "text": _QUESTION}]}]


def _load(config: Config, files: ModelFiles, longest: int) -> Engine:
    """Pages for the longest prompt and no more, unless settings say so: definitions need the rest of a GPU for scratch."""
    files = replace(files, max_model_len=min(files.max_model_len, longest + 2))
    settings, text = config.engine, files.spec.text
    if settings.kv_cache_gb is None:
        pages = -(-files.max_model_len // max(1, settings.page_size)) + 3
        page_bytes = settings.page_size * text.token_bytes(4)  # the widest dtype
        settings = replace(settings, kv_cache_gb=pages * page_bytes / 1024**3)
    return load_engine(replace(config, engine=settings), files)
