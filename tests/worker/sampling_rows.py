"""Rows to sample, and what comes out of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sightline.ops.kernels import register_kernels
from sightline.sampling_params import ResolvedSampling, resolve_sampling
from sightline.types import SamplingParams
from sightline.worker import sampler
from sightline.worker.penalties import PenaltyCounts
from sightline.worker.sampler import Sampled
from sightline.worker.step_input import SamplingRow, SlotReset

register_kernels()
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
CHANCES = (0.5, 0.25, 0.15, 0.06, 0.04)
LOGITS = torch.log(torch.tensor(CHANCES))


def sampling(values: Mapping[str, Any]) -> ResolvedSampling:
    return resolve_sampling(SamplingParams(**values), {})


@dataclass(frozen=True)
class RowCase:
    """What one row asks, and what came before it."""

    sampling: ResolvedSampling
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    banned: Sequence[int] = ()
    uniform: float = 0.5


def make_row(
    values: Mapping[str, Any],
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    uniform: float = 0.5,
) -> RowCase:
    return RowCase(sampling(values), prompt, output, banned, uniform)


def prepared(rows: Sequence[RowCase], vocab: int, device: torch.device) -> tuple[list[SamplingRow], PenaltyCounts]:
    """As a worker has them whose slots are all new: counts are told of prompts and answers."""
    given = [
        SamplingRow(slot, row.sampling, row.uniform, tuple(row.banned), tuple(row.output) if row.sampling.penalised else ())
        for slot, row in enumerate(rows)
    ]
    penalised = [slot for slot, row in enumerate(rows) if row.sampling.penalised]
    counts = PenaltyCounts(len(rows) if penalised else 1, vocab, device)
    resets = [SlotReset(slot, np.unique(np.array(rows[slot].prompt, np.int64))) for slot in penalised]
    counts.update(given, resets, torch.zeros(len(rows), dtype=torch.int64, device=device))
    return given, counts


def sample(logits: torch.Tensor, rows: Sequence[RowCase]) -> Sampled:
    return sampler.sample(logits, *prepared(rows, logits.shape[1], logits.device))


def frequencies(logits: torch.Tensor, values: Mapping[str, Any], times: int = 1000, **row: Any) -> list[float]:
    """How often each token of logits [vocab] comes when the uniform numbers are spread evenly: chances to within 1 / times."""
    rows = [make_row(values, uniform=(place + 0.5) / times, **row) for place in range(times)]
    tokens = sample(logits.expand(times, -1), rows).token_ids
    assert tokens.dtype == torch.int64 and tokens.device == logits.device
    return [count / times for count in tokens.bincount(minlength=logits.shape[0]).tolist()]


def survivors(logits: torch.Tensor, values: Mapping[str, Any], **row: Any) -> set[int]:
    """The tokens of logits [vocab] that can come; one with less than a thousandth of the chances may be missed."""
    return {token for token, often in enumerate(frequencies(logits, values, **row)) if often}
