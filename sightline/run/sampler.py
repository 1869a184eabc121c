"""From the logits of many sequences to one token each, on the device and without waiting for it.

The order is transformers': bias, penalties, bans, temperature, top-k, top-p, min-p. Greedy rows take the best score after the
bans; the others draw by inverse CDF with one uniform number of their own generator. A grammar is a ban on many tokens.

Chances are integers and filters are prefixes of the ranking: ops/sampling.py explains how, and that a row gets the same token
whatever batch it is in. Rows are grouped by what they ask, never by what their neighbours ask: rows without top-k and top-p are
not ranked at all, and of a small top-k the definition ranks the best k only.

NaN logits are not looked for, because finding them would wait for the device. They give some token id within the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.grammar.matcher import Matcher, allowed_tokens
from sightline.ops.sampling import SELECT_UP_TO, DrawSettings, best_first, best_token, draw_by_id, draw_by_score
from sightline.ops.token_mask import forbid_tokens
from sightline.run.sampling_params import ResolvedSampling, make_generator
from sightline.vision.transfer import send

__all__ = ["ResolvedSampling", "Sampled", "SamplingRow", "make_generator", "sample"]

ROWS_AT_ONCE = 128  # that draw: 128 rows of 150,000 tokens take 0.4 GiB for a moment, 0.7 where they are sorted


@dataclass(eq=False)
class SamplingRow:
    """One sequence, for as long as its answer grows."""

    sampling: ResolvedSampling
    prompt_ids: NDArray[np.int32]  # read once, when repetition_penalty is on
    output_ids: Sequence[int]  # read when a penalty is on; may be a list that grows, and only its new end is read
    generator: np.random.Generator  # the answer's own: one uniform number per sampled token, none when greedy
    banned_ids: Sequence[int] = ()  # end tokens while min_tokens is not reached
    grammar: Matcher | None = None  # which tokens may come, if the answer must have a form
    # The ids that penalties count, as an array: turning lists into arrays at every step would take longer than the penalties.
    _ids: NDArray[np.int64] | None = field(default=None, init=False, repr=False)  # distinct prompt ids, answer, room
    _prompt: int = field(default=0, init=False, repr=False)  # how many distinct ids
    _length: int = field(default=0, init=False, repr=False)  # ids before the room

    @property
    def needs_known_tokens(self) -> bool:
        """Whether the next token can be sampled only after the host has seen the ones before it."""
        asked = self.sampling
        penalties = asked.repetition_penalty != 1.0 or bool(asked.presence_penalty or asked.frequency_penalty)
        return penalties or self.grammar is not None

    def seen_ids(self) -> NDArray[np.int64]:
        """Prompt and answer; of the prompt each id once, because an image is thousands of the same."""
        if self._ids is None:
            self._ids = np.unique(self.prompt_ids).astype(np.int64)
            self._prompt = self._length = len(self._ids)
        length = self._prompt + len(self.output_ids)
        if length < self._length:  # the answer was shortened
            self._length = self._prompt
        if length > len(self._ids):
            self._ids = np.concatenate((self._ids[: self._length], np.empty(length, np.int64)))
        self._ids[self._length : length] = self.output_ids[self._length - self._prompt :]
        self._length = length
        return self._ids[:length]

    def answer_ids(self) -> NDArray[np.int64]:
        return self.seen_ids()[self._prompt :]


@dataclass(frozen=True, eq=False)
class Sampled:
    """Everything on the logits' device. The last three are None when no row asks; rows that do not ask hold 0 there."""

    token_ids: Tensor  # [n] int64
    logprobs: Tensor | None  # [n] float32, of the chosen tokens, from the logits as they came
    top_ids: Tensor | None  # [n, k] int64, best first, equals by id; k is the largest top_logprobs of the batch
    top_logprobs: Tensor | None  # [n, k] float32


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> Sampled:
    """Chooses a token for each row of logits [n, vocab]; the logits are not changed."""
    assert logits.shape[0] == len(rows), (logits.shape, len(rows))
    scores = _adjusted(logits, rows)
    groups: dict[Way, list[int]] = {}
    for place, row in enumerate(rows):
        if (way := way_of(row.sampling)) is not None:
            groups.setdefault(way, []).append(place)
    parts = [
        (way, members[first : first + ROWS_AT_ONCE])
        for way, members in groups.items()
        for first in range(0, len(members), ROWS_AT_ONCE)
    ]
    if len(parts) == 1 and len(parts[0][1]) == len(rows):
        tokens = _draw(parts[0][0], scores, rows)
    else:
        tokens = best_token(scores)  # of those that draw, replaced
        for way, places in parts:
            at = send(np.array(places), logits.device)
            tokens.index_copy_(0, at, _draw(way, scores.index_select(0, at), [rows[place] for place in places]))
    return _with_logprobs(tokens, logits, rows)


# ---- Scores: bias, penalties, bans


def _adjusted(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Scores [n, vocab] before temperature: the logits themselves when no row changes them."""
    biased = [i for i, row in enumerate(rows) if row.sampling.logit_bias]
    repeating = [i for i, row in enumerate(rows) if row.sampling.repetition_penalty != 1.0]
    counted = [i for i, row in enumerate(rows) if row.sampling.presence_penalty or row.sampling.frequency_penalty]
    banned = [i for i, row in enumerate(rows) if len(row.banned_ids) and row.grammar is None]
    formed = [i for i, row in enumerate(rows) if row.grammar is not None]
    if not (biased or repeating or counted or banned or formed):
        return logits
    scores = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if biased:
        _add_bias(scores, rows, biased)
    if repeating:
        _penalise_repetition(scores, rows, repeating)
    if counted:
        _penalise_counts(scores, rows, counted)
    if banned:
        cells = _cells([rows[i].banned_ids for i in banned], banned, scores.shape[1])
        scores.view(-1).index_fill_(0, send(cells, scores.device), -torch.inf)
    if formed:
        _keep_to_grammars(scores, rows, formed)
    return scores


def _add_bias(scores: Tensor, rows: Sequence[SamplingRow], places: list[int]) -> None:
    ids = [[token for token, _ in rows[i].sampling.logit_bias] for i in places]
    cells = send(_cells(ids, places, scores.shape[1]), scores.device)
    values = np.array([bias for i in places for _, bias in rows[i].sampling.logit_bias], np.float32)
    scores.view(-1).index_add_(0, cells, send(values, scores.device))


def _penalise_repetition(scores: Tensor, rows: Sequence[SamplingRow], places: list[int]) -> None:
    """Whatever was seen, however often: positive scores are divided, negative ones multiplied."""
    vocab, device = scores.shape[1], scores.device
    cells = send(_cells([rows[i].seen_ids() for i in places], range(len(places)), vocab), device)
    seen = torch.zeros(len(places), vocab, dtype=torch.bool, device=device)
    seen.view(-1).index_fill_(0, cells, True)
    penalty = send(np.array([[rows[i].sampling.repetition_penalty] for i in places], np.float32), device)
    at = send(np.array(places), device)
    old = _rows(scores, at)
    scores.index_copy_(0, at, torch.where(seen, torch.where(old < 0, old * penalty, old / penalty), old))


def _penalise_counts(scores: Tensor, rows: Sequence[SamplingRow], places: list[int]) -> None:
    """Of the answer alone: frequency_penalty for each occurrence, presence_penalty once."""
    vocab, device = scores.shape[1], scores.device
    cells = send(_cells([rows[i].answer_ids() for i in places], range(len(places)), vocab), device)
    counts = torch.zeros(len(places), vocab, dtype=torch.float32, device=device)
    counts.view(-1).scatter_add_(0, cells, torch.ones(cells.shape, dtype=torch.float32, device=device))
    pairs = [(rows[i].sampling.frequency_penalty, rows[i].sampling.presence_penalty) for i in places]
    frequency, presence = send(np.array(pairs, np.float32).T, device).unsqueeze(-1)  # each [rows, 1]
    at = send(np.array(places), device)
    scores.index_copy_(0, at, _rows(scores, at) - counts * frequency - (counts > 0) * presence)


def _keep_to_grammars(scores: Tensor, rows: Sequence[SamplingRow], places: list[int]) -> None:
    """The masks are made here, while the device still computes the logits."""
    matchers = [matcher for i in places if (matcher := rows[i].grammar) is not None]
    allowed = allowed_tokens(matchers, [rows[i].banned_ids for i in places], scores.shape[1])
    forbid_tokens(scores, send(allowed, scores.device), send(np.array(places), scores.device))


def _cells(ids: Sequence[Sequence[int] | NDArray[Any]], places: Sequence[int], vocab: int) -> NDArray[np.int64]:
    """Where (place, id) stands in a flattened [rows, vocab] matrix, for all ids of all places."""
    parts = [np.asarray(some, np.int64) for some in ids]
    flat = np.concatenate(parts)
    # An id outside would land in a neighbour's row. As unsigned numbers, negative ones are large.
    assert flat.view(np.uint64).max(initial=0) < vocab, f"a token id is not within 0 … {vocab - 1}"
    flat += np.repeat(np.asarray(places, np.int64) * vocab, [len(part) for part in parts])
    return flat


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
    """Takes a number from each row's generator."""
    chosen = [row.sampling for row in rows]
    top_k = [sampling.top_k for sampling in chosen]
    last = [min(k or vocab, vocab) - 1 for k in top_k]
    columns = [(s.temperature, place, s.top_p, s.min_p) for s, place in zip(chosen, last, strict=True)]
    values = np.array([(row.generator.random(), *others) for row, others in zip(rows, columns, strict=True)])
    uniform, temperature, places, top_p, min_p = send(values.T, device).unsqueeze(-1)
    return DrawSettings(
        largest_k=max(top_k) if min(top_k) > 0 else 0,
        uniform=uniform,
        temperature=temperature.float(),
        last=places.long(),
        top_p=top_p if any(sampling.top_p < 1.0 for sampling in chosen) else None,
        min_p=min_p.float() if any(sampling.min_p > 0.0 for sampling in chosen) else None,
    )


def _draw(way: Way, scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Tokens [g] of rows that draw in one way; scores [g, vocab]."""
    settings = draw_settings(rows, scores.shape[1], scores.device)
    return (draw_by_id if way is Way.BY_ID else draw_by_score)(scores.float(), settings)


# ---- Log-probabilities


def _with_logprobs(tokens: Tensor, logits: Tensor, rows: Sequence[SamplingRow]) -> Sampled:
    asking = [place for place, row in enumerate(rows) if row.sampling.logprobs]
    if not asking:
        return Sampled(tokens, None, None, None)
    at = send(np.array(asking), logits.device)
    raw = _rows(logits, at).float()
    normaliser = raw.logsumexp(dim=1, keepdim=True)
    chosen = raw.gather(1, _rows(tokens, at)[:, None]) - normaliser
    logprobs = chosen.new_zeros(len(rows)).index_copy_(0, at, chosen.squeeze(1))
    width = max(rows[place].sampling.top_logprobs for place in asking)
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
