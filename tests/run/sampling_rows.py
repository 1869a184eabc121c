"""Rows to sample, and what comes out of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sightline.ops.twins import register_twins
from sightline.run.sampler import SamplingRow, sample
from sightline.run.sampling_params import ResolvedSampling, make_generator, resolve_sampling
from sightline.types import SamplingParams

register_twins()
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
CHANCES = (0.5, 0.25, 0.15, 0.06, 0.04)
LOGITS = torch.log(torch.tensor(CHANCES))


def sampling(values: Mapping[str, Any]) -> ResolvedSampling:
    return resolve_sampling(SamplingParams(**values), {})


def make_row(
    values: Mapping[str, Any],
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    seed: int = 0,
    generator: Any = None,
) -> SamplingRow:
    numbers = generator or make_generator(seed, 0, 0)
    return SamplingRow(sampling(values), np.array(prompt, np.int32), list(output), numbers, list(banned))


class Numbers:
    """In place of a generator: the numbers it will give."""

    def __init__(self, *numbers: float) -> None:
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


def frequencies(logits: torch.Tensor, values: Mapping[str, Any], times: int = 1000, **row: Any) -> list[float]:
    """How often each token of logits [vocab] comes when the uniform numbers are spread evenly: chances to within 1 / times."""
    rows = [make_row(values, generator=Numbers((place + 0.5) / times), **row) for place in range(times)]
    tokens = sample(logits.expand(times, -1), rows).token_ids
    assert tokens.dtype == torch.int64 and tokens.device == logits.device
    return [count / times for count in tokens.bincount(minlength=logits.shape[0]).tolist()]


def survivors(logits: torch.Tensor, values: Mapping[str, Any], **row: Any) -> set[int]:
    """The tokens of logits [vocab] that can come; one with less than a thousandth of the chances may be missed."""
    return {token for token, often in enumerate(frequencies(logits, values, **row)) if often}
