"""The largest work that limits allow, run on values that mean nothing: what it takes of a device's memory can then be read.

Each function does what a step does, at full size. It needs no pages and no arena: sequences share one scratch page, because
memory depends on shapes, never on values.
"""

import dataclasses
import math

import numpy as np
import torch

from sightline.encoder.embeddings import gather_embeddings
from sightline.models.inputs import ForwardBatch, LogitsIndices
from sightline.models.model import VisionLanguageModel
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.ops.workspace import Workspace
from sightline.sampling_params import ResolvedSampling
from sightline.sampling_rules import MAX_TOP_LOGPROBS
from sightline.worker.caches import allocate_caches, tensors_of
from sightline.worker.penalties import PenaltyCounts
from sightline.worker.sampler import sample
from sightline.worker.step_input import SamplingRow

_SCRATCH_PAGES = 2
_SCRATCH_STATES = 1
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


def profile_language(
    model: VisionLanguageModel,
    tokens: int,
    sequences: int,
    longest: int,
    page_size: int,
    workspace: Workspace | None,
    quantised_cache: bool = False,
) -> torch.Tensor:
    """Logits of `sequences` sequences that have `tokens` new tokens together, each over a context of `longest`."""
    text = model.text
    layers = model.varied_layers  # a layer gives back what it takes before the next one begins, so a few are like all
    weight = text.embed_tokens.weight
    specs = [text.spec.layers[index] for index in layers]
    caches = allocate_caches(specs, _SCRATCH_PAGES, page_size, _SCRATCH_STATES, weight.device, weight.dtype, quantised_cache)
    for tensor in tensors_of(caches):
        tensor.zero_()
    batch = _language_batch(model, chunk_lengths(tokens, sequences, longest), longest, page_size, workspace)
    with text.only(layers):
        logits: torch.Tensor = model(batch, caches)
    return logits


def chunk_lengths(tokens: int, sequences: int, longest: int) -> tuple[int, ...]:
    """As many sequences as may run, one token each but for the first, which have all the rest."""
    count = max(min(sequences, tokens), -(-tokens // longest))
    lengths: list[int] = []
    for position in range(count):
        lengths.append(min(longest, tokens - sum(lengths) - (count - position - 1)))
    return tuple(lengths)


def _language_batch(
    model: VisionLanguageModel, lengths: tuple[int, ...], longest: int, page_size: int, workspace: Workspace | None
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
            workspace=workspace,
        ),
        vision_embeddings=zeros(1, model.spec.vision.embedding_width, dtype=weight.dtype),
        embedding_index=zeros(tokens),
        logits_indices=LogitsIndices(
            index=starts[1:] - 1,
            sequence=torch.arange(len(lengths), device=weight.device),
            query_starts=torch.arange(len(lengths) + 1, dtype=torch.int32, device=weight.device),
            context_lengths=starts.diff().int(),
            context_lengths_host=(longest,) * len(lengths),
        ),
        states=StateIndices(zeros(len(lengths)), zeros(len(lengths), dtype=torch.bool)),
        adapter_gates=None if model.text.adapter_gates is None else model.text.adapter_gates.of(zeros(tokens)),
    )


def profile_tower(model: VisionLanguageModel, patches: int) -> torch.Tensor:
    """Rows of `patches` patches together, or a few more, of the widest kind; with learned rows among them, as if arranged."""
    tower, weight = model.vision, model.text.embed_tokens.weight
    grids = tower.largest_grids(patches)
    shapes = [(math.prod(grid), tower.patch_width) for grid in grids]
    parts = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for shape in shapes]
    rows = model.encode(tower.make_batch(parts, grids))
    learned = tower.learned_embeddings
    return rows if learned is None else gather_embeddings(rows, learned, np.arange(len(rows)))


@torch.inference_mode()
def profile_sampling(vocab: int, rows: int, device: torch.device, dtype: torch.dtype) -> None:
    """Tokens for rows that ask for all that a request can ask for, in each of the ways of drawing."""
    logits = torch.zeros(rows, vocab, dtype=dtype, device=device)
    counts = PenaltyCounts(1, vocab, device)  # all rows share a slot: memory depends on how many rows there are
    for way in _WAYS:
        sample(logits, [SamplingRow(0, way, uniform=0.5) for _ in range(rows)], counts)
