"""Drawing without a sort gives the token that drawing with one gives, whatever the scores and the settings.

On a GPU with a whole vocabulary; on a CPU in Triton's interpreter (test_interpreter.py starts it), with smaller ones.
"""

import random

import pytest
import torch

from ops.interpreter import KERNEL_DEVICES, mend_the_interpreter
from sightline.ops.dispatch import definitions_only
from sightline.ops.kernels import register_kernels
from sightline.ops.sampling import DrawSettings, best_token, draw_by_id, draw_by_score

register_kernels()
mend_the_interpreter()


def some_scores(choose: random.Random, vocab: int, generator: torch.Generator) -> torch.Tensor:
    """A row [vocab] of one kind or another: spread, coarse, tied, peaked, flat, mostly forbidden, with zeros of both signs."""
    row = torch.randn(vocab, generator=generator) * choose.choice((0.01, 1.0, 3.0, 100.0))
    kind = choose.randrange(8)
    if kind == 1:
        row = row.bfloat16().float()
    elif kind == 2:
        row = row.round()
    elif kind == 3:
        row[choose.randrange(vocab)] += choose.choice((5.0, 20.0, 60.0))
    elif kind == 4:
        row = torch.full((vocab,), choose.choice((-3.0, 0.0, 7.5)))
    elif kind == 5:
        row[torch.rand(vocab, generator=generator) < choose.choice((0.5, 0.999))] = -torch.inf
        row[choose.randrange(vocab)] = 0.25
    elif kind == 6:
        row = row.sign() * 0.0
        row[choose.randrange(vocab)] = -1e-3
    elif kind == 7:
        row = -torch.arange(vocab) * choose.choice((1e-4, 0.1, 5.0))  # best first already
    return row


def some_settings(choose: random.Random, rows: int, vocab: int, ranked: bool, device: str) -> DrawSettings:
    top_k = [choose.choice((0, 1, 2, 20, 50, vocab - 1, vocab, choose.randint(1, vocab))) if ranked else 0 for _ in range(rows)]
    if choose.random() < 0.5:  # in half of the cases no row is without top-k
        top_k = [k or 40 for k in top_k] if ranked else top_k

    def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)[:, None]

    def of(choices: tuple[float, ...], dtype: torch.dtype) -> torch.Tensor:
        return column([choose.choice(choices) for _ in range(rows)], dtype)

    shares = (1.0, 0.95, 0.8, 0.3, 1e-6, choose.random() or 1.0)
    uniform = [choose.choice((0.0, 1 - 2**-53, choose.random(), choose.random())) for _ in range(rows)]
    return DrawSettings(
        largest_k=max(top_k) if min(top_k) > 0 else 0,
        uniform=column(uniform, torch.float64),
        temperature=of((1.0, 0.7, 0.1, 3.0), torch.float32),
        last=column([min(max(k, 0) or vocab, vocab) - 1 for k in top_k], torch.int64),
        top_p=of(shares, torch.float64) if ranked and choose.random() < 0.8 else None,
        min_p=of((0.0, 1.0, 0.3, 0.02, 1e-7), torch.float32) if choose.random() < 0.5 else None,
    )


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("seed", range(12))
def test_a_kernel_draws_what_the_definition_draws(seed: int, device: str) -> None:
    """Red when a filter ends one token off, a tie is broken another way, or a sum leaves a token out."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    vocab = choose.choice((151_936, 151_936, 248_320, 50_001)) if device == "cuda" else choose.choice((1, 2, 77, 1030, 5000))
    rows = choose.choice((1, 7, 64)) if device == "cuda" else 6
    scores = torch.stack([some_scores(choose, vocab, generator) for _ in range(rows)]).to(device)
    for ranked, draw in ((True, draw_by_score), (False, draw_by_id)):
        settings = some_settings(choose, rows, vocab, ranked, device)
        assert draw.kernels[0].when(scores, settings)
        with definitions_only():
            expected = draw(scores, settings).tolist()
        found = draw(scores, settings).tolist()
        assert found == expected, f"rows {[i for i in range(rows) if found[i] != expected[i]]} of {settings}"


@pytest.mark.parametrize("device", KERNEL_DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_best_token_is_the_first_of_the_best(dtype: torch.dtype, device: str) -> None:
    """Red when ties go to another token, or a part of the row is not looked at."""
    vocab = 151_936 if device == "cuda" else 9_000
    scores = torch.full((6, vocab), -3.0, dtype=dtype, device=device)
    places = [[0], [vocab - 1], [4095, 4096], [4096, 8191, 8192], [5, vocab - 1], list(range(vocab))]
    for row, some in zip(scores, places, strict=True):
        row[some] = 2.5
    assert best_token(scores).tolist() == [0, vocab - 1, 4095, 4096, 5, 0]


@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_broken_rows_give_a_token_of_the_vocabulary(device: str) -> None:
    """Red when NaN or nothing at all to choose from becomes an index out of range."""
    vocab = 5_000
    scores = torch.randn(4, vocab, generator=torch.Generator().manual_seed(0))
    scores[0], scores[1], scores[2, 17] = torch.nan, -torch.inf, torch.nan
    scores = scores.to(device)
    for seed in range(3):
        for ranked, draw in ((True, draw_by_score), (False, draw_by_id)):
            settings = some_settings(random.Random(seed), 4, vocab, ranked, device)
            tokens = draw(scores, settings).tolist()
            assert all(0 <= token < vocab for token in tokens)
            with definitions_only():
                assert tokens[3] == draw(scores, settings).tolist()[3]
