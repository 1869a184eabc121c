"""A ranked draw without a ranking. Per row:

    tally     each token falls into one of 1024 bins by its distance from the best score; bins add up units and count tokens
    bound     from the bins' running sums: how many bins the filters can reach, and where each bin's tokens will stand
    collect   tokens of those bins are written bin by bin, within a bin in any order
    draw      each question (where does top-k end, where top-p, where min-p, which token) has its bin by the running sums, and
              within the bin its score by bisection. Equal scores weigh the same, so that the rest is a division.

All that is added up are integers: whichever program comes first, the token is the same.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.ops.sampling import DrawSettings, draw_by_score, relative_weights, unit_bits
from sightline.ops.triton.sampling import PART_SIZE, flat, score_key, takes

_BINS = 1024
_TILE = 1024  # tokens of a bin looked at in one go


@triton.jit
def _depth(score, best, per_unit):
    """How far below the best, in bins. Each step rounds monotonically: a better score is never in a later bin."""
    return (best - score) * per_unit


@triton.jit
def _tally(
    scores, weights, best, per_unit, min_p, tallies, likely, vocab, scale,
    MIN_P: tl.constexpr, PART: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = token < vocab
    score = tl.load(scores + row * vocab + token, mask=inside, other=-float("inf"))
    weight = tl.load(weights + row * vocab + token, mask=inside, other=0.0)
    depth = _depth(score, tl.load(best + row), tl.load(per_unit + row))
    counted = inside & (depth < BINS)  # NaN is not
    bins = tl.where(counted, depth, 0.0).to(tl.int32)
    units = (weight * scale).to(tl.int64)
    here = tallies + row * 3 * BINS + bins
    tl.atomic_add(here, units, mask=counted & (units > 0), sem="relaxed")
    tl.atomic_add(here + BINS, tl.full([PART], 1, tl.int64), mask=counted, sem="relaxed")
    if MIN_P:
        enough = inside & (weight >= tl.load(min_p + row))
        tl.atomic_add(likely + row, tl.sum(enough.to(tl.int64), 0), sem="relaxed")


@triton.jit
def _line(share, total):
    """ceil(share * total), both at least 0, as float64 rounds the product."""
    product = share * total.to(tl.float64)
    whole = product.to(tl.int64)
    return whole + (whole.to(tl.float64) < product).to(tl.int64)


@triton.jit
def _bound(tallies, reach, last, top_p, TOP_P: tl.constexpr, BINS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BINS)
    here = tallies + row * 3 * BINS + index
    units = tl.load(here)
    counts = tl.load(here + BINS)
    running = tl.cumsum(counts, 0)
    tl.store(here + 2 * BINS, running - counts)
    allowed = tl.load(last + row) + 1
    bins = tl.sum((running < allowed).to(tl.int32), 0) + 1
    if TOP_P:
        line = _line(tl.load(top_p + row), tl.sum(units, 0))
        crossing = tl.sum((tl.cumsum(units, 0) < line).to(tl.int32), 0) + 1
        bins = tl.where(allowed >= tl.sum(counts, 0), crossing, bins)  # else the line is not known yet, but is above
    tl.store(reach + row, tl.minimum(bins, BINS))


@triton.jit
def _collect(
    scores, best, per_unit, tallies, reach, cells, vocab, PART: tl.constexpr, BINS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = token < vocab
    score = tl.load(scores + row * vocab + token, mask=inside, other=-float("inf"))
    depth = _depth(score, tl.load(best + row), tl.load(per_unit + row))
    taken = inside & (depth < tl.load(reach + row).to(tl.float32))
    bins = tl.where(taken, depth, 0.0).to(tl.int32)
    cursor = tallies + row * 3 * BINS + 2 * BINS + bins
    slot = tl.atomic_add(cursor, tl.full([PART], 1, tl.int64), mask=taken, sem="relaxed")
    cell = (score_key(score).to(tl.int64) << 32) | token.to(tl.int64)
    tl.store(cells + row * vocab + slot, cell, mask=taken)


@triton.jit
def _bin_of(running, line, units, counts, BINS: tl.constexpr):
    """Of the first bin whose running sum reaches the line: (its number, units before it, tokens before it, its end)."""
    index = tl.arange(0, BINS)
    number = tl.minimum(tl.sum((running < line).to(tl.int32), 0), BINS - 1)
    units_before = tl.sum(tl.where(index < number, units, 0), 0)
    first = tl.sum(tl.where(index < number, counts, 0), 0)
    return number, units_before, first, first + tl.sum(tl.where(index == number, counts, 0), 0)


@triton.jit
def _amount(cells, weights, first, end, least, scale, COUNT: tl.constexpr, TILE: tl.constexpr):
    """Units (COUNT: tokens) of the cells in [first, end) whose key is at least `least`."""
    found = tl.zeros([TILE], tl.int64)
    for start in range(first, end, TILE):
        index = start + tl.arange(0, TILE)
        inside = index < end
        cell = tl.load(cells + index, mask=inside, other=0)
        chosen = inside & ((cell >> 32) >= least)
        if COUNT:
            found += chosen.to(tl.int64)
        else:
            weight = tl.load(weights + (cell & 0x7FFFFFFF), mask=chosen, other=0.0)
            found += (weight * scale).to(tl.int64)
    return tl.sum(found, 0)


@triton.jit
def _crossing(cells, weights, first, end, wanted, scale, COUNT: tl.constexpr, TILE: tl.constexpr):
    """The key at which a bin's cells, best first, reach the wanted amount."""
    lowest = tl.full([TILE], 0x7FFFFFFF, tl.int64)
    highest = -lowest
    for start in range(first, end, TILE):
        index = start + tl.arange(0, TILE)
        inside = index < end
        key = tl.load(cells + index, mask=inside, other=0) >> 32
        lowest = tl.where(inside, tl.minimum(lowest, key), lowest)
        highest = tl.where(inside, tl.maximum(highest, key), highest)
    low = tl.min(lowest, 0)
    high = tl.max(highest, 0)
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        reached = _amount(cells, weights, first, end, middle, scale, COUNT, TILE) >= wanted
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    return low


@triton.jit
def _units_at(cells, weights, first, end, key, scale, TILE: tl.constexpr):
    """Units of one token with this key."""
    found = tl.zeros([TILE], tl.int64)
    for start in range(first, end, TILE):
        index = start + tl.arange(0, TILE)
        cell = tl.load(cells + index, mask=index < end, other=0)
        chosen = (index < end) & ((cell >> 32) == key)
        weight = tl.load(weights + (cell & 0x7FFFFFFF), mask=chosen, other=0.0)
        found = tl.maximum(found, (weight * scale).to(tl.int64))
    return tl.max(found, 0)


@triton.jit
def _units_of_best(
    cells, weights, counted, running, units, counts, number, reach, scale, BINS: tl.constexpr, TILE: tl.constexpr
):
    """Units of the `number` best tokens; if there are not so many, or they were not collected, of all."""
    bin_number, units_before, first, end = _bin_of(running, number, units, counts, BINS)
    known = (number < counted) & (bin_number < reach)
    end = tl.where(known, end, first)
    key = _crossing(cells, weights, first, end, number - first, scale, True, TILE)
    better = _amount(cells, weights, first, end, key + 1, scale, True, TILE)
    better_units = _amount(cells, weights, first, end, key + 1, scale, False, TILE)
    each = _units_at(cells, weights, first, end, key, scale, TILE)
    return tl.where(known, units_before + better_units + (number - first - better) * each, tl.sum(units, 0))


@triton.jit
def _token_with(cells, first, end, key, number, TILE: tl.constexpr):
    """The id of token `number` (from 0), by id, of those with this key."""
    lowest = tl.full([TILE], 0x7FFFFFFF, tl.int64)
    highest = -lowest
    for start in range(first, end, TILE):
        index = start + tl.arange(0, TILE)
        cell = tl.load(cells + index, mask=index < end, other=0)
        chosen = (index < end) & ((cell >> 32) == key)
        lowest = tl.where(chosen, tl.minimum(lowest, cell & 0x7FFFFFFF), lowest)
        highest = tl.where(chosen, tl.maximum(highest, cell & 0x7FFFFFFF), highest)
    low = tl.min(lowest, 0)
    high = tl.max(highest, 0)
    while low < high:
        middle = (low + high) >> 1
        found = tl.zeros([TILE], tl.int64)
        for start in range(first, end, TILE):
            index = start + tl.arange(0, TILE)
            cell = tl.load(cells + index, mask=index < end, other=0)
            chosen = (index < end) & ((cell >> 32) == key) & ((cell & 0x7FFFFFFF) <= middle)
            found += chosen.to(tl.int64)
        reached = tl.sum(found, 0) > number
        high = tl.where(reached, middle, high)
        low = tl.where(reached, low, middle + 1)
    return low


@triton.jit
def _draw_along_ranks(
    cells, weights, tallies, reach, likely, uniform, last, top_p, out, vocab, scale,
    TOP_P: tl.constexpr, MIN_P: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cells += row * vocab
    weights += row * vocab
    here = tallies + row * 3 * BINS + tl.arange(0, BINS)
    units = tl.load(here)
    counts = tl.load(here + BINS)
    running_units = tl.cumsum(units, 0)
    running = tl.cumsum(counts, 0)
    counted = tl.sum(counts, 0)
    bins = tl.load(reach + row)
    kept = _units_of_best(
        cells, weights, counted, running, units, counts, tl.load(last + row) + 1, bins, scale, BINS, TILE
    )  # fmt: skip
    if TOP_P:
        line = _line(tl.load(top_p + row), kept)
        _, before, first, end = _bin_of(running_units, line, units, counts, BINS)
        key = _crossing(cells, weights, first, end, line - before, scale, False, TILE)
        before += _amount(cells, weights, first, end, key + 1, scale, False, TILE)
        each = tl.maximum(_units_at(cells, weights, first, end, key, scale, TILE), 1)
        kept = before + (line - before + each - 1) // each * each
    if MIN_P:
        number = tl.maximum(tl.load(likely + row), 1)
        kept = tl.minimum(
            kept, _units_of_best(cells, weights, counted, running, units, counts, number, bins, scale, BINS, TILE)
        )  # fmt: skip
    target = (tl.load(uniform + row) * kept.to(tl.float64)).to(tl.int64)
    _, before, first, end = _bin_of(running_units, target + 1, units, counts, BINS)
    key = _crossing(cells, weights, first, end, target + 1 - before, scale, False, TILE)
    before += _amount(cells, weights, first, end, key + 1, scale, False, TILE)
    each = tl.maximum(_units_at(cells, weights, first, end, key, scale, TILE), 1)
    token = _token_with(cells, first, end, key, (target - before) // each, TILE)
    tl.store(out + row, tl.minimum(tl.maximum(token, 0), vocab - 1))


@draw_by_score.kernel("triton", when=takes, graph_safe=True)
def draw_by_score_triton(scores: Tensor, settings: DrawSettings) -> Tensor:
    rows, vocab = scores.shape
    device, scores, bits = scores.device, scores.contiguous(), unit_bits(vocab)
    grid, scale = (rows, triton.cdiv(vocab, PART_SIZE)), 2.0**bits
    best = scores.amax(dim=1)
    weights = relative_weights(scores, settings.temperature)
    # Beyond the last bin a token weighs less than half a unit, whatever was rounded: it has no chances.
    per_unit = (_BINS / (bits * math.log(2) + 1)) / settings.temperature.reshape(-1)
    tallies = torch.zeros(rows, 3, _BINS, dtype=torch.int64, device=device)  # units, tokens, then where they stand
    likely = torch.zeros(rows, dtype=torch.int64, device=device)
    reach = torch.empty(rows, dtype=torch.int32, device=device)
    cells = torch.empty(rows, vocab, dtype=torch.int64, device=device)  # key, then id: only as many as are collected
    out = torch.empty(rows, dtype=torch.int64, device=device)
    uniform, last = flat(settings.uniform, weights), flat(settings.last, weights)
    top_p, min_p = flat(settings.top_p, weights), flat(settings.min_p, weights)
    has_top_p, has_min_p = settings.top_p is not None, settings.min_p is not None
    _tally[grid](
        scores, weights, best, per_unit, min_p, tallies, likely, vocab, scale, has_min_p, PART_SIZE, _BINS, num_warps=8
    )  # fmt: skip
    _bound[(rows,)](tallies, reach, last, top_p, has_top_p, _BINS, num_warps=4)
    _collect[grid](scores, best, per_unit, tallies, reach, cells, vocab, PART_SIZE, _BINS, num_warps=8)
    _draw_along_ranks[(rows,)](
        cells, weights, tallies, reach, likely, uniform, last, top_p, out, vocab, scale,
        has_top_p, has_min_p, _BINS, _TILE, num_warps=4,
    )  # fmt: skip
    return out
