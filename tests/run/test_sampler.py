"""Choosing tokens: limits, filters and seeds. Red when a filter keeps one token too many or too few."""

from collections import Counter

import pytest
import torch

from sightline.errors import PromptError
from sightline.run.sampler import ResolvedSampling, resolve_sampling
from sightline.run.sampler import sample_one as sample
from sightline.types import SamplingParams

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.06, 0.04]))
NOTHING = torch.zeros(0, dtype=torch.int64)


def sampling(**values: float) -> ResolvedSampling:
    return resolve_sampling(SamplingParams(**values), {})  # type: ignore[arg-type]


def drawn(settings: ResolvedSampling, seen: torch.Tensor = NOTHING, times: int = 400) -> Counter[int]:
    generator = torch.Generator().manual_seed(0)
    return Counter(sample(LOGITS, settings, seen, generator) for _ in range(times))


def test_greedy() -> None:
    assert set(drawn(sampling(temperature=0))) == {0}
    assert set(drawn(sampling(temperature=1e-6))) == {0}  # how generation configs write it


def test_chances_follow_the_logits() -> None:
    counts = drawn(sampling(), times=8000)
    for token, chance in enumerate((0.5, 0.25, 0.15, 0.06, 0.04)):
        assert counts[token] / 8000 == pytest.approx(chance, abs=0.02)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 0}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.95}, {0, 1, 2, 3}),
        ({"min_p": 0.29}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.9}, {0, 1, 2}),  # top-p counts what top-k left: 0.56, 0.28, 0.17
        ({"temperature": 0.05}, {0}),
    ],
)
def test_filters(values: dict[str, float], kept: set[int]) -> None:
    assert set(drawn(sampling(**values))) == kept


def test_repetition_penalty_lowers_what_was_seen() -> None:
    settings = sampling(temperature=0, repetition_penalty=3.0)
    assert sample(LOGITS, settings, torch.tensor([0]), None) == 1
    assert sample(LOGITS.neg() * -1, settings, torch.tensor([0, 1, 2]), None) == 0  # 3 x log 0.5 is still the best
    positive = torch.tensor([3.0, 2.0, 1.0])
    assert sample(positive, settings, torch.tensor([0]), None) == 1  # positive scores are divided


def test_same_seed_same_tokens() -> None:
    first, second = (torch.Generator().manual_seed(7) for _ in range(2))
    draws = [[sample(LOGITS, sampling(), NOTHING, g) for _ in range(20)] for g in (first, second)]
    assert draws[0] == draws[1]


def test_defaults_come_from_the_checkpoint_and_yield_to_the_request() -> None:
    defaults = {"temperature": 0.7, "top_k": 20.0}
    assert resolve_sampling(SamplingParams(), defaults).temperature == 0.7
    resolved = resolve_sampling(SamplingParams(temperature=0.2), defaults)
    assert (resolved.temperature, resolved.top_k, resolved.top_p, resolved.max_tokens) == (0.2, 20, 1.0, 256)


@pytest.mark.parametrize(
    "values", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -2}, {"min_p": 2}, {"repetition_penalty": 0}]
)
def test_values_out_of_range_are_named(values: dict[str, float]) -> None:
    with pytest.raises(PromptError, match=next(iter(values))):
        sampling(**values)
