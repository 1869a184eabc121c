"""Examples of the generator as batches whose samples share one layout.

Buckets are filled by layout (picture sizes, frames, images, length of the prompt) and handed over when they are full.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.evals.signs.generate import Example, make_example
from sightline.models.families.qwen3_vl.processor import Qwen3VLProcessor
from sightline.prompt.expand import expand
from sightline.prompt.positions import prompt_positions
from sightline.prompt.template import ChatTemplate
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import MediaTokens, PatchSpec
from sightline.types import ImageHeader, MediaItem, MediaRef, View

PATCH, MERGE, TEMPORAL = 16, 2, 2
_PICTURES = PatchSpec(64 * 64, 512 * 512, PATCH, TEMPORAL, MERGE, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
PROCESSOR = Qwen3VLProcessor(_PICTURES, _PICTURES)
IGNORED = -100  # label of a token that is not learnt
LENGTHS = 32  # prompts are padded to multiples of it: a graph is captured for each length


@dataclass(frozen=True)
class BatchLayout:
    """What all samples of a batch share. Two batches with equal layouts can be mixed."""

    skill: str
    shape: tuple[int, int, int]  # images of a sample or frames of its video, height, width
    tokens: int  # of the prompt with its answers, padded at the end
    grid: tuple[int, int, int]  # of each image, or of the video: temporal groups, rows, columns, in patches
    items: int  # images per sample; 1 for a video
    spans: tuple[tuple[int, int], ...]  # (first token, rows) in the order of the rows

    @property
    def video(self) -> bool:
        return self.skill == "video"


@dataclass(frozen=True)
class Batch:
    layout: BatchLayout
    pixels: NDArray[np.uint8]  # [batch, frames, height, width, 3]: images of a sample, or frames of its video
    token_ids: NDArray[np.int64]  # [batch, tokens], padded at the end
    labels: NDArray[np.int64]  # [batch, tokens]: the token itself inside answers, else IGNORED
    positions: NDArray[np.int64]  # [3, tokens]
    texts: tuple[str, ...]  # what is written in the picture, for the reading loss; empty where nothing is
    answers: tuple[str, ...]  # of the first turn
    prompts: tuple[int, ...]  # tokens before the first answer


class Encoder:
    """An example's conversation as token ids, exactly as the package builds prompts."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_folder(folder)
        self.template = ChatTemplate.from_folder(folder)
        of = self.tokenizer.id_of
        self.tokens = MediaTokens(of("<|image_pad|>"), of("<|video_pad|>"))
        self.end, self.pad = of("<|im_end|>"), of("<|endoftext|>")
        self.answer_mark = self.tokenizer.encode("<|im_start|>assistant\n")

    def items(self, example: Example) -> list[MediaItem]:
        header = ImageHeader("RGB", 1, 1, 1)
        if example.frames is not None:
            count, height, width = example.frames.shape[:3]
            grid = (count // TEMPORAL, height // PATCH, width // PATCH)
            times = tuple(index / example.fps for index in range(count))
            ref = MediaRef("video", b"", b"", header, "")
            return [MediaItem(ref, b"", (View.whole((height, width)),), (grid,), tuple(range(count)), times, _rows(grid))]
        found = []
        for image in example.images:
            grid = (1, image.shape[0] // PATCH, image.shape[1] // PATCH)
            view = View.whole((image.shape[0], image.shape[1]))
            found.append(MediaItem(MediaRef("image", b"", b"", header, ""), b"", (view,), (grid,), (), (), _rows(grid)))
        return found

    def encode(self, example: Example) -> "EncodedExample":
        """(ids, labels, spans, items, tokens before the first answer)"""
        kind = "video" if example.frames is not None else "image"
        items = self.items(example)
        messages: list[dict[str, Any]] = []
        for number, turn in enumerate(example.turns):
            media = [{"type": kind}] * len(items) if number == 0 else []
            messages.append({"role": "user", "content": [*media, {"type": "text", "text": turn.question}]})
            messages.append({"role": "assistant", "content": turn.answer})
        prompt = self.template.render(messages, add_generation_prompt=False)
        ids, spans = expand(prompt, items, PROCESSOR, self.tokens, self.tokenizer)
        ids = ids.astype(np.int64)
        labels = np.full_like(ids, IGNORED)
        mark, at, first = self.answer_mark, 0, 0
        while (at := _find(ids, mark, at)) >= 0:
            at += len(mark)
            first = first or at
            stop = at + int(np.argmax(ids[at:] == self.end)) + 1
            labels[at:stop] = ids[at:stop]
            at = stop
        return ids, labels, spans, items, first


def _rows(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2] // MERGE**2


def _find(ids: NDArray[np.int64], mark: list[int], start: int) -> int:
    for at in np.flatnonzero(ids[start:] == mark[0]) + start:
        if ids[at : at + len(mark)].tolist() == mark:
            return int(at)
    return -1


EncodedExample = tuple[NDArray[np.int64], NDArray[np.int64], Any, list[MediaItem], int]


def layout_of(example: Example, encoded: EncodedExample) -> BatchLayout:
    ids, _, spans, items, _ = encoded
    pixels = example.frames if example.frames is not None else np.stack(example.images)
    count, height, width = pixels.shape[:3]
    padded = -(-len(ids) // LENGTHS) * LENGTHS
    places = tuple((span.start, span.count) for span in spans)
    return BatchLayout(example.skill, (count, height, width), padded, items[0].grid, len(items), places)


def make_batch(examples: list[Example], encoder: Encoder) -> Batch:
    """Of examples whose layouts differ in length at most."""
    encoded = [encoder.encode(example) for example in examples]
    layout = max((layout_of(*pair) for pair in zip(examples, encoded, strict=True)), key=lambda one: one.tokens)
    token_ids = np.full((len(examples), layout.tokens), encoder.pad, np.int64)
    labels = np.full((len(examples), layout.tokens), IGNORED, np.int64)
    for row, (ids, own_labels, *_) in enumerate(encoded):
        token_ids[row, : len(ids)] = ids
        labels[row, : len(ids)] = own_labels
    _, _, spans, items, _ = encoded[0]
    positions, _ = prompt_positions(layout.tokens, items, spans, PROCESSOR)
    pixels = [e.frames if e.frames is not None else np.stack(e.images) for e in examples]
    reads = layout.skill in ("sign", "phone")
    return Batch(
        layout=layout,
        pixels=np.stack(pixels),
        token_ids=token_ids,
        labels=labels,
        positions=positions.astype(np.int64),
        texts=tuple(e.turns[0].answer if reads else "" for e in examples),
        answers=tuple(e.turns[0].answer for e in examples),
        prompts=tuple(first for *_, first in encoded),
    )


def batches(
    folder: Path, split: str, size: int, first_seed: int, stride: int, level: Any, skills: dict[str, float]
) -> Iterator[Batch]:
    """Endless. Seeds first_seed, first_seed + stride, … so that processes do not repeat each other.

    `level` is a number, or something shared whose `value` may rise while this runs: then half of the examples are easier.
    """
    encoder = Encoder(folder)
    buckets: dict[BatchLayout, list[Example]] = {}
    names, weights = list(skills), np.cumsum(list(skills.values())) / sum(skills.values())
    seed = first_seed
    while True:
        random = np.random.default_rng(seed)
        skill = names[int(np.searchsorted(weights, random.random()))]
        hardest = level.value if hasattr(level, "value") else level
        easier = hasattr(level, "value") and hardest < 1 and random.random() < 0.5
        example = make_example(seed, split, skill, hardest * random.random() if easier else hardest)
        bucket = buckets.setdefault(layout_of(example, encoder.encode(example)), [])
        bucket.append(example)
        if len(bucket) == size:
            yield make_batch(bucket, encoder)
            bucket.clear()
        seed += stride
