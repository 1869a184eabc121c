"""What a step costs on the host before and after the device works: planning it, packing its batch, taking its results in.

No model: sampled tokens are made up. Times are of the processor, so that neighbours on a machine do not count. Two cases:

    decode   sequences with contexts of about 2,000 tokens, each computes one token per step
    fill     a queue that never empties, of prompts with an image each, so that each step starts, fills and ends some
"""

import itertools
import platform
import statistics
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from sightline.cache.embeddings import EmbeddingCache
from sightline.cache.keys import embedding_key, root_key
from sightline.cache.pages import PageCache
from sightline.engine.pack import pack_batch
from sightline.schedule.plan import plan_step
from sightline.schedule.progress import admit, advance, encode_is_ready, finish, take_tokens
from sightline.schedule.state import Limits, Schedule, Sequence
from sightline.types import ImageHeader, MediaItem, MediaRef, MediaSpan, Request, View
from sightline.worker.batch import to_device

CONTEXT = 2000
PAGE_SIZE = 16
_BLOCK_ROWS = 64
_PATCHES_PER_ROW = 4
_WARM_UP = 20  # steps


@dataclass
class Timings:
    """Microseconds of each measured step."""

    plan: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)  # pack_batch, and its torch tensors


@dataclass(frozen=True)
class ScheduleCost:
    """Medians over steps, in microseconds."""

    case: str
    sequences: int
    plan: float
    complete: float
    batch: float
    slowest: float  # plan and complete of the slowest step in a hundred

    @property
    def schedule(self) -> float:
        return self.plan + self.complete

    @property
    def per_sequence(self) -> float:
        return self.schedule / self.sequences


def decode_cost(sequences: int, steps: int, batches: bool = True) -> ScheduleCost:
    """Medians over `steps` steps in which each of so many sequences gets one token."""
    answer = steps + _WARM_UP + 1
    pages = sequences * -(-(CONTEXT + PAGE_SIZE + answer) // PAGE_SIZE)
    schedule = _make_schedule(Limits(sequences, sequences * (CONTEXT + PAGE_SIZE), 1, 0, 1 << 30), pages, blocks=1)
    generator = np.random.default_rng(0)
    # lengths differ, so that each step fills the pages of a sixteenth of the sequences
    admit(schedule, [_sequence(n, _text(generator, CONTEXT + n % PAGE_SIZE), answer) for n in range(sequences)])
    ignored = Timings()
    _run_step(schedule, ignored, batches=False)  # computes all prompts
    for _ in range(_WARM_UP):
        _run_step(schedule, ignored, batches)
    timings = Timings()
    for _ in range(steps):
        _run_step(schedule, timings, batches)
    return _cost("decode", sequences, timings)


def fill_cost(sequences: int, steps: int, batches: bool = True) -> ScheduleCost:
    """Medians over `steps` steps with at most so many sequences: prompts of 600 tokens, 256 of them an image, answers of 16."""
    rows, answer, queue = 256, 16, 16
    limits = Limits(sequences, 8192, 65536, 16384, 512)
    schedule = _make_schedule(limits, pages=sequences * 100, blocks=sequences * rows // _BLOCK_ROWS + 64)
    generator = np.random.default_rng(0)
    numbers = itertools.count()
    timings = Timings()
    for step in range(_WARM_UP + steps):
        while len(schedule.waiting) < queue:
            number = next(numbers)
            admit(schedule, [_sequence(number, _pictured(generator, number, 600, rows), answer)])
        _run_step(schedule, timings if step >= _WARM_UP else Timings(), batches)
        for sequence in [sequence for sequence in schedule.running if len(sequence.output) == answer]:
            finish(schedule, sequence)
    return _cost("fill", sequences, timings)


def _make_schedule(limits: Limits, pages: int, blocks: int) -> Schedule:
    return Schedule(limits, PageCache(pages + 1, PAGE_SIZE), EmbeddingCache(blocks, _BLOCK_ROWS, row_bytes=1))


def _run_step(schedule: Schedule, timings: Timings, batches: bool) -> None:
    start = time.thread_time()
    step = plan_step(schedule)
    planned = time.thread_time()
    if batches:
        to_device(pack_batch(step.chunks, schedule.embeddings), torch.device("cpu"), torch.empty(0))
    sampled = {chunk.sequence.id: (7,) for chunk in step.chunks if chunk.samples}
    packed = time.thread_time()
    for encode in step.encodes:
        encode_is_ready(schedule, encode.entry.key)
    advance(schedule, step)
    take_tokens(schedule, step, sampled)
    done = time.thread_time()
    timings.plan.append(1e6 * (planned - start))
    timings.batch.append(1e6 * (packed - planned))
    timings.complete.append(1e6 * (done - packed))


def _cost(case: str, sequences: int, timings: Timings) -> ScheduleCost:
    both = sorted(plan + complete for plan, complete in zip(timings.plan, timings.complete, strict=True))
    return ScheduleCost(
        case,
        sequences,
        plan=statistics.median(timings.plan),
        complete=statistics.median(timings.complete),
        batch=statistics.median(timings.batch),
        slowest=both[len(both) * 99 // 100],
    )


# ---- Requests


def _sequence(number: int, request: Request, answer: int) -> Sequence:
    keys = tuple(embedding_key(item.key, "cpu") for item in request.items)
    return Sequence(number, request, answer, 0, number, root_key(), keys, PAGE_SIZE)


def _text(generator: np.random.Generator, tokens: int) -> Request:
    ids = generator.integers(0, 150_000, tokens).astype(np.int32)
    return Request(ids, np.broadcast_to(np.arange(tokens, dtype=np.int32), (3, tokens)), 0, (), ())


def _pictured(generator: np.random.Generator, number: int, tokens: int, rows: int) -> Request:
    """A prompt with an image of its own after 20 tokens."""
    key = sha256(number.to_bytes(8, "little")).digest()
    ref = MediaRef("image", b"", key, ImageHeader("RGB", 1, 1, 1), f"<{number}>")
    item = MediaItem(ref, key, (View.whole((1, 1)),), ((1, 1, rows * _PATCHES_PER_ROW),), (), (), rows)
    text = _text(generator, tokens)
    return Request(text.token_ids, text.positions, 0, (item,), (MediaSpan(0, 20, rows, 0),))


# ---- Reports


def growth(costs: Seq[ScheduleCost]) -> list[float | None]:
    """For each cost, by how much each doubling since the one before multiplied it: 2 is linear. None for the first."""
    found: list[float | None] = [None]
    for before, after in itertools.pairwise(costs):
        doublings = np.log2(after.sequences / before.sequences)
        found.append(float((after.schedule / before.schedule) ** (1 / doublings)))
    return found[: len(costs)]


def report(costs: Seq[ScheduleCost], steps: int) -> dict[str, object]:
    """What the JSON file holds."""
    rows: list[dict[str, object]] = []
    for case in dict.fromkeys(cost.case for cost in costs):
        same = [cost for cost in costs if cost.case == case]
        for cost, ratio in zip(same, growth(same), strict=True):
            rows.append(
                {
                    "case": case,
                    "sequences": cost.sequences,
                    "plan_us": round(cost.plan, 1),
                    "complete_us": round(cost.complete, 1),
                    "schedule_us": round(cost.schedule, 1),
                    "schedule_us_per_sequence": round(cost.per_sequence, 3),
                    "slowest_in_100_us": round(cost.slowest, 1),
                    "batch_us": round(cost.batch, 1),
                    "growth_per_doubling": None if ratio is None else round(ratio, 2),
                }
            )
    return {
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "context": CONTEXT,
        "page_size": PAGE_SIZE,
        "steps": steps,
        "rows": rows,
    }


def cpu_name() -> str:
    """As the kernel names it, where it does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
