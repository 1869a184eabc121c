"""From the logits of many sequences to one token each, on the device and without waiting for it.

The order is transformers': bias, penalties, bans, temperature, top-k, top-p, min-p. Greedy rows take the best score after the
bans; the others draw by inverse CDF with the uniform number that the host gives them. A grammar is a ban on many tokens.

Chances are integers and filters are prefixes of the ranking: ops/sampling.py explains how, and that a row gets the same token
whatever batch it is in. Rows are grouped by what they ask, never by what their neighbours ask: rows without top-k and top-p are
not ranked at all, and of a small top-k the definition ranks the best k only.

NaN logits are not looked for, because finding them would wait for the device. They give some token id within the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.ops.sampling import SELECT_UP_TO, DrawSettings, best_first, best_token, draw_by_id, draw_by_score
from sightline.ops.token_mask import forbid_tokens
from sightline.ops.transfer import send
from sightline.sampling_params import ResolvedSampling
from sightline.worker.penalties import PenaltyCounts, flat_cells
from sightline.worker.step_input import SamplingRow

ROWS_AT_ONCE = 128  # that draw: 128 rows of 150,000 tokens take 0.4 GiB for a moment, 0.7 where they are sorted


@dataclass(frozen=True, eq=False)
class Sampled:
    """Everything on the logits' device. The last three are None when no row asks; rows that do not ask hold 0 there."""

    token_ids: Tensor  # [n] int64
    logprobs: Tensor | None  # [n] float32, of the chosen tokens, from the logits as they came
    top_ids: Tensor | None  # [n, k] int64, best first, equals by id; k is the largest top_logprobs of the batch
    top_logprobs: Tensor | None  # [n, k] float32


def sample(
    logits: Tensor,
    rows: Sequence[SamplingRow],
    counts: PenaltyCounts,
    masked: Sequence[int] = (),
    masks: NDArray[np.int32] | None = None,
) -> Sampled:
    """Chooses a token for each row of logits [n, vocab]; the logits are not changed.

    `counts` are up to date. `masks` [masked, words] has the tokens that the rows `masked` may take.
    """
    assert logits.shape[0] == len(rows), (logits.shape, len(rows))
    scores = _adjusted(logits, rows, counts, masked, masks)
    groups: dict[Way, list[int]] = {}
    for index, row in enumerate(rows):
        if (way := way_of(row.sampling)) is not None:
            groups.setdefault(way, []).append(index)
    parts = [
        (way, members[first : first + ROWS_AT_ONCE])
        for way, members in groups.items()
        for first in range(0, len(members), ROWS_AT_ONCE)
    ]
    if len(parts) == 1 and len(parts[0][1]) == len(rows):
        tokens = _draw(parts[0][0], scores, rows)
    else:
        tokens = best_token(scores)  # of those that draw, replaced
        for way, indices in parts:
            at = send(np.array(indices), logits.device)
            tokens.index_copy_(0, at, _draw(way, scores.index_select(0, at), [rows[index] for index in indices]))
    return _with_logprobs(tokens, logits, rows)


# ---- Scores: bias, penalties, bans


def _adjusted(
    logits: Tensor,
    rows: Sequence[SamplingRow],
    counts: PenaltyCounts,
    masked: Sequence[int],
    masks: NDArray[np.int32] | None,
) -> Tensor:
    """Scores [n, vocab] before temperature: the logits themselves when no row changes them."""
    biased = [i for i, row in enumerate(rows) if row.sampling.logit_bias]
    penalised = [i for i, row in enumerate(rows) if row.sampling.penalised]
    banned = [i for i, row in enumerate(rows) if row.banned_ids]
    if not (biased or penalised or banned or masked):
        return logits
    scores = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if biased:
        _add_bias(scores, rows, biased)
    if penalised:
        _penalise(scores, [rows[i] for i in penalised], penalised, counts)
    if banned:
        cells = flat_cells([rows[i].banned_ids for i in banned], banned, scores.shape[1])
        scores.view(-1).index_fill_(0, send(cells, scores.device), -torch.inf)
    if masked:
        assert masks is not None and len(masks) == len(masked), "rows with a grammar wait for its mask"
        forbid_tokens(scores, send(masks, scores.device), send(np.array(masked), scores.device))
    return scores


def _add_bias(scores: Tensor, rows: Sequence[SamplingRow], indices: list[int]) -> None:
    ids = [[token for token, _ in rows[i].sampling.logit_bias] for i in indices]
    cells = send(flat_cells(ids, indices, scores.shape[1]), scores.device)
    values = np.array([bias for i in indices for _, bias in rows[i].sampling.logit_bias], np.float32)
    scores.view(-1).index_add_(0, cells, send(values, scores.device))


def _penalise(scores: Tensor, rows: Sequence[SamplingRow], indices: list[int], counts: PenaltyCounts) -> None:
    """Repetition: whatever was seen in prompt or answer, however often; positive scores are divided, negative ones multiplied.
    Of the answer alone: frequency_penalty for each occurrence, presence_penalty once. `places` are where `rows` stand."""
    device = scores.device
    in_answer, in_prompt = counts.of(rows)
    asked = [row.sampling for row in rows]
    at = send(np.array(indices), device)
    old = _rows(scores, at)
    if any(one.repetition_penalty != 1.0 for one in asked):
        penalty = send(np.array([[one.repetition_penalty] for one in asked], np.float32), device)
        seen = (in_answer > 0) | in_prompt
        old = torch.where(seen, torch.where(old < 0, old * penalty, old / penalty), old)
    if any(one.presence_penalty or one.frequency_penalty for one in asked):
        pairs = [(one.frequency_penalty, one.presence_penalty) for one in asked]
        frequency, presence = send(np.array(pairs, np.float32).T, device).unsqueeze(-1)  # each [rows, 1]
        old = old - in_answer * frequency - (in_answer > 0) * presence
    scores.index_copy_(0, at, old)


# ---- Drawing


class Way(Enum):
    """How a row draws. Chosen from the row alone, which keeps answers independent of the batch."""

    BY_ID = auto()  # no top-k, no top-p
    OF_THE_BEST = auto()  # a small top-k
    BY_SCORE = auto()


def way_of(sampling: ResolvedSampling) -> Way | None:
    """None: greedy."""
    if sampling.greedy:
        return None
    if sampling.top_k == 0 and sampling.top_p == 1.0:
        return Way.BY_ID
    return Way.OF_THE_BEST if 0 < sampling.top_k <= SELECT_UP_TO else Way.BY_SCORE


def draw_settings(rows: Sequence[SamplingRow], vocab: int, device: torch.device) -> DrawSettings:
    chosen = [row.sampling for row in rows]
    top_k = [sampling.top_k for sampling in chosen]
    last = [min(k or vocab, vocab) - 1 for k in top_k]
    columns = [(s.temperature, index, s.top_p, s.min_p) for s, index in zip(chosen, last, strict=True)]
    values = np.array([(row.uniform, *others) for row, others in zip(rows, columns, strict=True)])
    uniform, temperature, indices, top_p, min_p = send(values.T, device).unsqueeze(-1)
    return DrawSettings(
        largest_k=max(top_k) if min(top_k) > 0 else 0,
        uniform=uniform,
        temperature=temperature.float(),
        last=indices.long(),
        top_p=top_p if any(sampling.top_p < 1.0 for sampling in chosen) else None,
        min_p=min_p.float() if any(sampling.min_p > 0.0 for sampling in chosen) else None,
    )


def _draw(way: Way, scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Tokens [g] of rows that draw in one way; scores [g, vocab]."""
    settings = draw_settings(rows, scores.shape[1], scores.device)
    return (draw_by_id if way is Way.BY_ID else draw_by_score)(scores.float(), settings)


# ---- Log-probabilities


def _with_logprobs(tokens: Tensor, logits: Tensor, rows: Sequence[SamplingRow]) -> Sampled:
    asking = [index for index, row in enumerate(rows) if row.sampling.logprobs]
    if not asking:
        return Sampled(tokens, None, None, None)
    at = send(np.array(asking), logits.device)
    raw = _rows(logits, at).float()
    normaliser = raw.logsumexp(dim=1, keepdim=True)
    chosen = raw.gather(1, _rows(tokens, at)[:, None]) - normaliser
    logprobs = chosen.new_zeros(len(rows)).index_copy_(0, at, chosen.squeeze(1))
    width = max(rows[index].sampling.top_logprobs for index in asking)
    if width == 0:
        return Sampled(tokens, logprobs, None, None)
    best, ids = best_first(raw, min(width, raw.shape[1]))
    top_ids = ids.new_zeros(len(rows), ids.shape[1]).index_copy_(0, at, ids)
    top_logprobs = best.new_zeros(len(rows), ids.shape[1]).index_copy_(0, at, best - normaliser)
    return Sampled(tokens, logprobs, top_ids, top_logprobs)


# ---- Moving data


def _rows(matrix: Tensor, at: Tensor) -> Tensor:
    """matrix[at] for ascending places `at`, without a copy when they are all."""
    return matrix if at.shape[0] == matrix.shape[0] else matrix.index_select(0, at)
