"""The plain way to an answer: one request at a time, whole prompt in one pass, then token by token."""

import time
from collections.abc import Callable

import numpy as np
import torch

from sightline.models.inputs import ForwardBatch, LayerCache
from sightline.models.model import VisionLanguageModel
from sightline.run.kv_cache import allocate_pages
from sightline.run.sampler import ResolvedSampling
from sightline.run.sampler import sample_one as sample
from sightline.spec import ProcessorSpec
from sightline.types import Request
from sightline.vision.patches import make_patches
from sightline.vision.tower_batch import make_tower_batch


class Stopwatch:
    """Seconds per stage. On a GPU each stage waits for the device, so that its time is its own."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


class SingleSequence:
    """One request's keys and values in pages of its own, and the forward passes over them."""

    def __init__(self, model: VisionLanguageModel, request: Request, capacity: int, page_size: int) -> None:
        weight = model.text.embed_tokens.weight
        self.model, self.request, self.device = model, request, weight.device
        self.length = 0  # tokens whose keys and values are stored
        pages = -(-capacity // page_size)
        self.caches: list[LayerCache] = allocate_pages(model.spec.text, pages, page_size, self.device, weight.dtype)
        self.page_table = torch.arange(pages, dtype=torch.int32, device=self.device)[None]

    def prefill(self, vision_rows: torch.Tensor | None, all_logits: bool = False) -> torch.Tensor:
        """Logits after the prompt, [1, vocab], or after each of its tokens, [tokens, vocab]."""
        request = self.request
        row_index = None
        if vision_rows is not None:
            first_row = np.cumsum([0, *(item.rows for item in request.items)])
            index = np.full(len(request), -1, np.int64)
            for span in request.spans:
                first = first_row[span.item] + span.row
                index[span.start : span.start + span.count] = np.arange(first, first + span.count)
            row_index = torch.from_numpy(index).to(self.device)
        positions = torch.from_numpy(request.positions).to(self.device)
        wanted = list(range(len(request))) if all_logits else [len(request) - 1]
        return self._forward(request.token_ids.astype(np.int64), positions, vision_rows, row_index, wanted)

    def decode(self, token: int) -> torch.Tensor:
        """Logits after one more token, [1, vocab]."""
        position = self.length + self.request.position_delta
        positions = torch.full((3, 1), position, dtype=torch.int32, device=self.device)
        return self._forward(np.array([token], np.int64), positions, None, None, [0])

    def _forward(
        self,
        token_ids: np.typing.NDArray[np.int64],
        positions: torch.Tensor,
        vision_rows: torch.Tensor | None,
        row_index: torch.Tensor | None,
        wanted: list[int],
    ) -> torch.Tensor:
        new = len(token_ids)
        context = self.length + new
        batch = ForwardBatch(
            token_ids=torch.from_numpy(token_ids).to(self.device),
            positions=positions,
            slots=torch.arange(self.length, context, device=self.device),
            page_table=self.page_table,
            query_starts=torch.tensor([0, new], dtype=torch.int32, device=self.device),
            context_lengths=torch.tensor([context], dtype=torch.int32, device=self.device),
            query_lengths_host=(new,),
            context_lengths_host=(context,),
            vision_rows=vision_rows,
            row_index=row_index,
            logit_index=torch.tensor(wanted, device=self.device),
        )
        logits = self.model(batch, self.caches)
        self.length = context
        assert isinstance(logits, torch.Tensor)
        return logits


def encode_items(
    model: VisionLanguageModel, request: Request, processor: ProcessorSpec, watch: Stopwatch | None = None
) -> torch.Tensor | None:
    """Embedding rows of the request's items, one after another; None for text. An item that comes twice is encoded once."""
    if not request.items:
        return None
    weight = model.vision.patch_embed.weight
    order = {item.key: item for item in request.items}
    patches = [
        make_patches(item, processor.image if item.ref.kind == "image" else processor.video, weight.device, weight.dtype)
        for item in order.values()
    ]
    if watch is not None:
        watch.lap("pixels")
    grids = [item.grid for item in order.values()]
    rows = model.encode(make_tower_batch(patches, grids, model.spec.vision, weight.device))
    parts = dict(zip(order, rows.split([item.rows for item in order.values()]), strict=True))
    if len(order) < len(request.items):
        rows = torch.cat([parts[item.key] for item in request.items])
    if watch is not None:
        watch.lap("tower")
    return rows


def generate(
    model: VisionLanguageModel,
    request: Request,
    processor: ProcessorSpec,
    sampling: ResolvedSampling,
    end_tokens: frozenset[int],
    max_length: int,
    page_size: int,
    seed: int | None,
    stopped: Callable[[list[int]], bool],
    watch: Stopwatch,
) -> tuple[list[int], bool]:
    """(tokens, whether an end token or `stopped` ended them). `stopped` sees the tokens so far after each one."""
    rows = encode_items(model, request, processor, watch)
    limit = min(
        sampling.max_tokens, max_length - len(request), model.text.rotary.positions - len(request) - request.position_delta
    )
    sequence = SingleSequence(model, request, len(request) + max(limit, 0), page_size)
    logits = sequence.prefill(rows)
    watch.lap("prefill")
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    seen = torch.from_numpy(request.token_ids.astype(np.int64)).to(sequence.device)
    tokens: list[int] = []
    while len(tokens) < limit:
        token = sample(logits[0], sampling, seen, generator)
        tokens.append(token)
        if token in end_tokens or stopped(tokens):
            watch.lap("decode")
            return tokens, True
        if len(tokens) < limit:
            seen = torch.cat((seen, torch.tensor([token], device=sequence.device)))
            logits = sequence.decode(token)
    watch.lap("decode")
    return tokens, False
