"""The same logits through transformers' processors: the same tokens survive, with the same chances."""

from typing import Any

import pytest
import torch

import torchvision_on_cpu
from sightline.ops.sampling import cdf_by_id, cdf_by_score
from sightline.worker.sampler import Way, _adjusted, draw_settings, way_of
from worker.sampling_rows import DEVICES, make_row, prepared

VOCAB = 3000
PROMPT, OUTPUT = [5, 17, 17, 2999], [0, 5, 1234]
CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "top_k": 40},
    {"top_k": 1},
    {"top_k": 20, "top_p": 0.8, "temperature": 0.7, "repetition_penalty": 1.05},  # as Qwen's checkpoints ask
    {"top_k": 2000, "top_p": 0.6},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.95, "temperature": 1.5, "min_p": 0.02},
    {"min_p": 0.1},
    {"min_p": 0.01, "temperature": 0.8, "top_k": 500},
    {"repetition_penalty": 1.2, "temperature": 0.9, "top_k": 100, "top_p": 0.7, "min_p": 0.03},
]


def theirs(logits: torch.Tensor, values: dict[str, Any]) -> torch.Tensor:
    """Chances [n, vocab] by transformers, in the order of its generate."""
    torchvision_on_cpu.declare_operators()
    from transformers.generation import logits_process as hf

    makers = {
        "repetition_penalty": hf.RepetitionPenaltyLogitsProcessor,
        "temperature": hf.TemperatureLogitsWarper,
        "top_k": hf.TopKLogitsWarper,
        "top_p": hf.TopPLogitsWarper,
        "min_p": hf.MinPLogitsWarper,
    }
    scores = logits.clone()
    ids = torch.tensor([PROMPT + OUTPUT], device=logits.device).expand(len(logits), -1)
    for name, maker in makers.items():
        if name in values:
            scores = maker(values[name])(ids, scores)
    return scores.double().softmax(dim=1)


def ours(logits: torch.Tensor, values: dict[str, Any]) -> torch.Tensor:
    """Chances [n, vocab] by our sampler, before a number is drawn."""
    rows, counts = prepared([make_row(values, PROMPT, OUTPUT)] * len(logits), VOCAB, logits.device)
    way = way_of(rows[0].sampling)
    assert way is not None
    make_cdf = cdf_by_id if way is Way.BY_ID else cdf_by_score
    cdf = make_cdf(_adjusted(logits, rows, counts, (), None), draw_settings(rows, VOCAB, logits.device))
    chances = cdf.running.diff(dim=1, prepend=torch.zeros_like(cdf.total))
    chances = chances.masked_fill(cdf.running > cdf.total, 0).double() / cdf.total
    if cdf.ids is None:
        return chances
    return torch.zeros(logits.shape, dtype=torch.float64, device=logits.device).scatter_(1, cdf.ids, chances)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", CASES, ids=str)
def test_same_survivors_and_chances(values: dict[str, Any], device: str) -> None:
    """Red if the order of the steps, a threshold or a normalisation differs from transformers'."""
    logits = torch.randn(16, VOCAB, generator=torch.Generator().manual_seed(11)).mul(3).to(device)
    expected, found = theirs(logits, values), ours(logits, values)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    # Tokens with less than 2^-40 of the best one's chances have none in whole numbers.
    likely = expected > 2.0**-40 * expected.amax(dim=1, keepdim=True)
    assert torch.equal(found > 0, likely)
    assert likely.sum(dim=1).min() >= 1
