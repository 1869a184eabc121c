"""Choosing a token from each row of scores: the best one, or one drawn with chances that are whole numbers.

A row's chances are *integers*, exp(score - best score) in units of 2^-34 or so, and nothing is ever normalised. Sums of
integers do not depend on the order of adding, so a row gets the same token whatever batch it is in, and a kernel may add them
up as it likes. In rows ranked by score, equal scores by id, every filter is a prefix whose length is found in the one running
sum:

    best first    w0  w1  w2  w3  w4 │ w5 …          running sum c0 ≤ c1 ≤ c2 …
    top-k         ───────────────────┤               5 tokens
    top-p         ─────────┤                         the c_i < top_p * c4, and one more: the token that crosses the line stays
    min-p         ──────────────┤                    the w_i >= min_p * w0
    draw          the first token with c_i > uniform * c_last, among the shortest prefix

NaN scores give some token id within the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.ops.dispatch import EXACT, ExampleMaker, op

SELECT_UP_TO = 1024  # for a larger top-k the definition sorts the whole row


@dataclass(frozen=True, eq=False)
class DrawSettings:
    """What g rows ask, each tensor [g, 1]; None when no row asks."""

    largest_k: int  # 0: some row has no top-k
    uniform: Tensor  # float64, the rows' random numbers in [0, 1)
    temperature: Tensor  # float32
    last: Tensor  # int64: where the last token that top-k lets through stands, best first
    top_p: Tensor | None  # float64
    min_p: Tensor | None  # float32


@dataclass(frozen=True, eq=False)
class Cdf:
    """Integer chances of g rows, added up: token i has running[i] - running[i - 1] of total chances, and none above total."""

    running: Tensor  # [g, width] int64
    total: Tensor  # [g, 1] int64
    ids: Tensor | None  # [g, width] int64, whose chances they are; None: column i is token i


def cdf_by_id(scores: Tensor, settings: DrawSettings) -> Cdf:
    """Without top-k and top-p, in the order of ids. scores [g, vocab] float32."""
    weights = relative_weights(scores, settings.temperature)
    if settings.min_p is not None:
        weights.masked_fill_(weights < settings.min_p, 0.0)
    running = _units(weights, scores.shape[1]).cumsum(dim=1)
    return Cdf(running, running[:, -1:], None)


def cdf_by_score(scores: Tensor, settings: DrawSettings) -> Cdf:
    """Best first. scores [g, vocab] float32."""
    vocab = scores.shape[1]
    if 0 < settings.largest_k <= SELECT_UP_TO:
        ranked, ids = best_first(scores, min(settings.largest_k, vocab))
    else:
        ranked, ids = (scores + 0.0).sort(dim=1, descending=True, stable=True)  # without -0.0: equal to 0.0 in any sort
    weights = _weights(ranked, ranked[:, :1], settings.temperature)
    running = _units(weights, vocab).cumsum(dim=1)
    last = settings.last
    if settings.top_p is not None:
        line = (settings.top_p * running.gather(1, last)).ceil().long()
        last = torch.minimum(last, torch.searchsorted(running, line))
    if settings.min_p is not None:
        likely = (weights >= settings.min_p).sum(dim=1, keepdim=True)  # the best weighs 1: none only if it is NaN
        last = torch.minimum(last, likely - 1).clamp_(min=0)
    return Cdf(running, running.gather(1, last), ids)


def invert_cdf(cdf: Cdf, uniform: Tensor) -> Tensor:
    """The tokens [g] where the running sum first exceeds uniform [g, 1] * total.

    A uniform number is at most 1 - 2^-53 and a total a whole number below 2^53: their rounded product is below the total, so
    that no token outside is reached; nor is a token without chances, because the sum does not grow there. The clamp is for NaN
    alone, which must not become an index out of range.
    """
    target = (uniform * cdf.total).long()
    index = torch.searchsorted(cdf.running, target, right=True).clamp_(max=cdf.running.shape[1] - 1)
    return (index if cdf.ids is None else cdf.ids.gather(1, index)).squeeze(1)


def best_first(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(scores, ids) [g, count] of the best, equal scores by id: torch.topk in an order that ties cannot upset.

    One int64 per token: above, the score's bits, made to sort as integers; below, the id counted from the end.
    """
    vocab = scores.shape[1]
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0, which it equals
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # a negative float has its magnitude turned round
    from_end = torch.arange(vocab - 1, -1, -1, device=scores.device)
    keys = ordered.long().mul_(2**32).add_(from_end).topk(count, dim=1).values
    ids = (vocab - 1) - (keys & 0xFFFFFFFF)
    return scores.gather(1, ids), ids


def relative_weights(scores: Tensor, temperature: Tensor) -> Tensor:
    """Chances relative to the best token's; scores [g, vocab] float32, temperature [g, 1]."""
    return _weights(scores, scores.amax(dim=1, keepdim=True), temperature)


def _weights(scores: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    return (scores - best).div_(temperature).exp_()


def unit_bits(vocab: int) -> int:
    """A weight of 1 is 2^this units: as many as keep the sum of a whole vocabulary exact as a float64."""
    return 52 - (vocab - 1).bit_length()


def _units(weights: Tensor, vocab: int) -> Tensor:
    return weights.mul(2.0 ** unit_bits(vocab)).long()


# ---- Ops


def _score_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, vocab in ((3, 5), (2, 4097), (1, 1), (4, 9000)):
        yield {"scores": make.normal(rows, vocab)}
    tied = make.normal(5, 9000).round()  # zeros of both signs
    tied[0] = 0.0
    tied[1, :8000] = -torch.inf
    tied[2] = -torch.inf
    tied[3, 7000:] = -0.0
    yield {"scores": tied - 2.0}
    yield {"scores": tied.clamp(max=0.0)}


@op(examples=_score_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def best_token(scores: Tensor) -> Tensor:
    """The ids [g] int64 of the best of scores [g, vocab], of equal ones the lowest."""
    return scores.argmax(dim=-1)


def _kinds_of_rows(make: ExampleMaker, vocab: int) -> Tensor:
    """Random, coarse as bfloat16 is, tied, peaked, flat, nearly all forbidden, one token only, far apart. [g, vocab]"""
    rows = make.normal(8, vocab, dtype=torch.float32) * 3
    rows[1] = rows[1].bfloat16().float()
    rows[2] = rows[2].round()
    rows[3, vocab // 3] += 40
    rows[4] = 1.5
    rows[5, : vocab - max(1, vocab // 8)] = -torch.inf
    rows[6, : vocab - 1] = -torch.inf
    rows[7] *= 30
    return rows


def _settings(make: ExampleMaker, rows: int, vocab: int, wanted: dict[str, tuple[float, ...]]) -> DrawSettings:
    """Row i asks the i-th of each kind of setting, round and round; the ends of the uniform numbers come too."""
    asked = {name: [values[i % len(values)] for i in range(rows)] for name, values in wanted.items()}
    uniform = make.integers(0, 2**20, rows, dtype=torch.float64) / 2**20
    uniform[::7], uniform[3::7] = 0.0, 1 - 2**-53
    top_k = [int(k) for k in asked["top_k"]]

    def column(values: list[Any], dtype: torch.dtype) -> Tensor:
        return make.tensor(values, dtype)[:, None]

    return DrawSettings(
        largest_k=max(top_k) if min(top_k) > 0 else 0,
        uniform=uniform[:, None],
        temperature=column(asked["temperature"], torch.float32),
        last=column([min(k or vocab, vocab) - 1 for k in top_k], torch.int64),
        top_p=column(asked["top_p"], torch.float64) if "top_p" in asked else None,
        min_p=column(asked["min_p"], torch.float32) if "min_p" in asked else None,
    )


def _by_id_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for vocab, extra in ((5, {}), (4500, {}), (4500, {"min_p": (0.0, 0.2, 1.0)})):
        scores = _kinds_of_rows(make, vocab)
        wanted: dict[str, tuple[float, ...]] = {"top_k": (0,), "temperature": (1.0, 0.3, 2.5), **extra}
        yield {"scores": scores, "settings": _settings(make, len(scores), vocab, wanted)}


@op(examples=_by_id_examples, tolerances={torch.float32: EXACT})
def draw_by_id(scores: Tensor, settings: DrawSettings) -> Tensor:
    """One token [g] int64 of each row of scores [g, vocab] float32, without top-k and top-p: along the ids."""
    return invert_cdf(cdf_by_id(scores, settings), settings.uniform)


def _by_score_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    kinds: tuple[dict[str, tuple[float, ...]], ...] = (
        {"top_k": (0,), "top_p": (0.9, 0.5, 0.99, 1e-9, 1.0)},
        {"top_k": (20, 1, 3, 1000)},
        {"top_k": (0, 2000, 7, 100), "top_p": (0.8, 0.95, 1.0), "min_p": (0.0, 0.01, 0.3, 1.0, 1e-5)},
    )
    for vocab in (5, 1500):
        for wanted in kinds:
            scores = _kinds_of_rows(make, vocab)
            settings = _settings(make, len(scores), vocab, {"temperature": (1.0, 0.3, 2.5), **wanted})
            yield {"scores": scores, "settings": settings}


@op(examples=_by_score_examples, tolerances={torch.float32: EXACT})
def draw_by_score(scores: Tensor, settings: DrawSettings) -> Tensor:
    """One token [g] int64 of each row of scores [g, vocab] float32, with top-k, top-p and min-p: along the ranks."""
    return invert_cdf(cdf_by_score(scores, settings), settings.uniform)
