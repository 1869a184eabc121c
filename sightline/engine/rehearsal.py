"""The largest work that limits allow, run on values that mean nothing: what it takes of a device's memory can then be read.

Each function does what a step does, at full size. It needs no pages and no arena: sequences share one scratch page, because
memory depends on shapes, never on values.
"""

import dataclasses
import math

import numpy as np
import torch

from sightline.models.inputs import ForwardBatch, WantedTokens
from sightline.models.model import VisionLanguageModel
from sightline.ops.pages import GatheringRoom
from sightline.ops.sequences import PagedSequences
from sightline.run.kv_cache import allocate_pages
from sightline.run.sampler import SamplingRow, make_generator, sample
from sightline.run.sampling_params import MAX_TOP_LOGPROBS, ResolvedSampling
from sightline.vision.tower_batch import Grid, make_tower_batch

_SCRATCH_PAGES = 2
_EVERYTHING = ResolvedSampling(
    max_tokens=1,
    min_tokens=0,
    temperature=1.0,
    top_p=0.9,
    top_k=0,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    seed=0,
    n=1,
    logprobs=True,
    top_logprobs=MAX_TOP_LOGPROBS,
)
# The three ways of drawing: from all tokens in order, from the best few, from all.
_WAYS = (
    _EVERYTHING,
    dataclasses.replace(_EVERYTHING, top_k=1000),
    dataclasses.replace(_EVERYTHING, top_p=1.0),
)


def rehearse_language(
    model: VisionLanguageModel, tokens: int, sequences: int, longest: int, page_size: int, room: GatheringRoom
) -> torch.Tensor:
    """Logits of `sequences` sequences that have `tokens` new tokens together, each over a context of `longest`."""
    text = model.text
    layers = model.varied_layers  # a layer gives back what it takes before the next one begins, so a few are like all
    weight = text.embed_tokens.weight
    spec = dataclasses.replace(text.spec, num_layers=layers)
    caches = allocate_pages(spec, _SCRATCH_PAGES, page_size, weight.device, weight.dtype)
    for cache in caches:
        cache.keys.zero_()
        cache.values.zero_()
    batch = _language_batch(model, chunk_lengths(tokens, sequences, longest), longest, page_size, room)
    with text.only_first(layers):
        logits: torch.Tensor = model(batch, caches)
    return logits


def chunk_lengths(tokens: int, sequences: int, longest: int) -> tuple[int, ...]:
    """As many sequences as may run, one token each but for the first, which have all the rest."""
    count = max(min(sequences, tokens), -(-tokens // longest))
    lengths: list[int] = []
    for place in range(count):
        lengths.append(min(longest, tokens - sum(lengths) - (count - place - 1)))
    return tuple(lengths)


def _language_batch(
    model: VisionLanguageModel, lengths: tuple[int, ...], longest: int, page_size: int, room: GatheringRoom
) -> ForwardBatch:
    weight, tokens = model.text.embed_tokens.weight, sum(lengths)

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=weight.device)

    starts = torch.tensor((0, *np.cumsum(lengths).tolist()), device=weight.device)
    return ForwardBatch(
        token_ids=zeros(tokens),
        positions=zeros(3, tokens, dtype=torch.int32),
        slots=zeros(tokens),
        sequences=PagedSequences(
            page_table=zeros(len(lengths), -(-longest // page_size), dtype=torch.int32),
            query_starts=starts.int(),
            context_lengths=starts.diff().int(),  # short on the device, to save time: memory depends on what the host knows
            query_lengths_host=lengths,
            context_lengths_host=(longest,) * len(lengths),
            room=room,
        ),
        vision_rows=zeros(1, model.spec.vision.row_width, dtype=weight.dtype),
        row_index=zeros(tokens),
        wanted=WantedTokens(
            index=starts[1:] - 1,
            sequence=torch.arange(len(lengths), device=weight.device),
            query_starts=torch.arange(len(lengths) + 1, dtype=torch.int32, device=weight.device),
            context_lengths=starts.diff().int(),
            context_lengths_host=(longest,) * len(lengths),
        ),
    )


def rehearse_tower(model: VisionLanguageModel, patches: int) -> torch.Tensor:
    """Rows of two clips of `patches` patches together, or a few more: clips have the widest patches, and two are joined."""
    vision, weight = model.spec.vision, model.vision.patch_embed.weight
    grid = square_grid(-(-patches // 2), vision.merge_size)
    parts = [torch.zeros(math.prod(grid), weight.shape[1], dtype=weight.dtype, device=weight.device) for _ in range(2)]
    return model.encode(make_tower_batch(parts, [grid, grid], vision, weight.device))


def square_grid(patches: int, merge: int) -> Grid:
    """One frame of at least so many patches, about as high as wide, sides multiples of `merge`."""
    height = max(1, math.isqrt(patches) // merge) * merge
    return 1, height, -(-patches // (height * merge)) * merge


@torch.inference_mode()
def rehearse_sampling(vocab: int, rows: int, device: torch.device, dtype: torch.dtype) -> None:
    """Tokens for rows that ask for all that a request can ask for, in each of the ways of drawing."""
    logits = torch.zeros(rows, vocab, dtype=dtype, device=device)
    prompt = np.zeros(1, np.int32)
    for way in _WAYS:
        sample(logits, [SamplingRow(way, prompt, [0], make_generator(0, 0, row)) for row in range(rows)])
