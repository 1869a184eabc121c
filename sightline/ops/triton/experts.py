"""Experts: routing, lists of each expert's pairs, two grouped GEMMs, and the sum over a token's experts.

A grouped GEMM has a program for each tile of rows and columns. How many tiles of rows an expert has is known on the device
alone, so there are as many programs as the most unequal routing needs; a program finds its expert in the counts, and those
that are left over end at once. So a CUDA graph holds for every routing, and memory does not depend on it.

Where pairs are fewer than half of the experts, nearly each is alone with its expert: then a tile is a pair, nothing is counted
and nothing sorted.

Gate and up of the same column stand side by side in a tile of the first GEMM, whose rows of the weight are read in this order,
so silu(gate) * up is its epilogue. The second multiplies with the weight of the pair, and writes a row for each pair; these are
added up in one pass, in the order of the pairs. Nothing is added by atomics: the same input gives the same bits.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sightline.ops.experts import (
    Groups,
    Held,
    Lists,
    Scores,
    Shared,
    expert_down,
    expert_gate_up,
    group_pairs,
    route_tokens,
    scale_group,
    sum_expert_outputs,
)
from sightline.ops.fp8 import BLOCK, quantise_rows
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.dependent_launch import (
    dependent_launch,
    has_dependent_launch,
    launch_dependents,
    wait_for_dependencies,
)

_LOWEST = -3.0e38  # below every score; chosen experts get less
_FEW_TOKENS = 128
_LISTED = 16384  # experts of tokens that a program of _group looks at in one turn
_SUMMED = 1024  # columns of a program of _sum


# ---- Routing


@triton.jit(do_not_specialize=["tokens"])
def _route(
    logits, bias, experts, weights, tokens, scale, COUNT: tl.constexpr, CHOSEN: tl.constexpr, SIGMOID: tl.constexpr,
    SHARED: tl.constexpr, GATED: tl.constexpr, LOWEST: tl.constexpr, ROWS: tl.constexpr, COUNT_PADDED: tl.constexpr,
    CHOSEN_PADDED: tl.constexpr, FIRST: tl.constexpr, HELD: tl.constexpr, NORMALISE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_dependencies(PDL)
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    number = tl.arange(0, COUNT_PADDED)
    there = token[:, None] < tokens
    row = logits + token[:, None] * (COUNT + GATED)
    wide = tl.load(row + number[None, :], mask=there & (number[None, :] < COUNT), other=0.0).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-wide))
        key = score + tl.load(bias + number, mask=number < COUNT, other=0.0)[None, :]
    else:
        key = wide
    key = tl.where(key > LOWEST, key, LOWEST)  # not-a-number too
    key = tl.where(number[None, :] < COUNT, key, float("-inf"))
    if not SIGMOID:
        score = tl.exp(wide - tl.max(key, 1)[:, None])  # where weights are divided by their sum, that over all experts cancels
        if not NORMALISE:
            score = score / tl.sum(tl.where(number[None, :] < COUNT, score, 0.0), 1)[:, None]
    rank = tl.arange(0, CHOSEN_PADDED)
    best = tl.zeros((ROWS, CHOSEN_PADDED), tl.int32)
    value = tl.zeros((ROWS, CHOSEN_PADDED), tl.float32)
    for offset in tl.static_range(CHOSEN):
        first = tl.argmax(key, 1, tie_break_left=True)
        is_first = number[None, :] == first[:, None]
        own = tl.sum(tl.where(is_first, score, 0.0), 1)
        key = tl.where(is_first, float("-inf"), key)
        best = tl.where(rank[None, :] == offset, first[:, None], best)
        value = tl.where(rank[None, :] == offset, own[:, None], value)
    if NORMALISE:
        value = value / (tl.sum(value, 1)[:, None] + 1e-20)
    value = value * scale
    if SHARED:
        own = tl.full((ROWS, 1), 1.0, tl.float32)
        if GATED:
            own = 1.0 / (1.0 + tl.exp(-tl.load(row + COUNT, mask=there, other=0.0).to(tl.float32)))
        best = tl.where(rank[None, :] >= CHOSEN, COUNT + rank[None, :] - CHOSEN, best)
        value = tl.where(rank[None, :] >= CHOSEN, own, value)
    if HELD:
        best = tl.where((best >= FIRST) & (best < FIRST + HELD), best - FIRST, -1)
    offset = token[:, None] * (CHOSEN + SHARED) + rank[None, :]
    inside = there & (rank[None, :] < CHOSEN + SHARED)
    tl.store(experts + offset, best, mask=inside)
    tl.store(weights + offset, value.to(logits.dtype.element_ty).to(tl.float32), mask=inside)


def _can_route(
    logits: torch.Tensor, bias: torch.Tensor | None, chosen: int, scores: Scores, scale: float, shared: Shared,
    held: Held | None = None, shared_count: int = 1, normalise: bool = True, groups: Groups | None = None,
) -> bool:  # fmt: skip
    plain = groups is None and (bias is None) == (scores == "softmax")
    return runs_here(logits) and logits.is_contiguous() and logits.numel() > 0 and plain


@route_tokens.kernel("triton", when=_can_route, graph_safe=True)
def route_tokens_triton(
    logits: torch.Tensor, bias: torch.Tensor | None, chosen: int, scores: Scores, scale: float, shared: Shared,
    held: Held | None = None, shared_count: int = 1, normalise: bool = True, groups: Groups | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    tokens, count = len(logits), logits.shape[1] - (shared == "gated")
    more = 0 if shared == "none" else shared_count
    columns = chosen + more
    experts = torch.empty(tokens, columns, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, columns, dtype=torch.float32, device=logits.device)
    first, own = held or (0, 0)
    rows, warps = (1, 1) if tokens <= _FEW_TOKENS else (8, 4)
    _route[(triton.cdiv(tokens, rows),)](
        logits, logits if bias is None else bias, experts, weights, tokens, scale, count, chosen, scores == "sigmoid",
        more, int(shared == "gated"), _LOWEST, rows, next_power_of_2(count), next_power_of_2(columns),
        first, own, normalise, num_warps=warps, **dependent_launch(tokens, logits.device),
    )  # fmt: skip
    return experts, weights


# ---- Lists of pairs


@triton.jit(do_not_specialize=["tokens"])
def _group(
    experts, counts, pairs, tokens, CHOSEN: tl.constexpr, CHOSEN_PADDED: tl.constexpr, TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The list of one expert. A token has it once at most."""
    wait_for_dependencies(PDL)
    expert = tl.program_id(0)
    own = pairs + expert.to(tl.int64) * tokens
    rank = tl.arange(0, CHOSEN_PADDED)
    found = 0
    for start in range(0, tokens, TOKENS):
        token = start + tl.arange(0, TOKENS)
        number = token[:, None] * CHOSEN + rank[None, :]
        inside = (token[:, None] < tokens) & (rank[None, :] < CHOSEN)
        pair = tl.max(tl.where(tl.load(experts + number, mask=inside, other=-1) == expert, number, -1), 1)
        mine = (pair >= 0).to(tl.int32)
        tl.store(own + found + tl.cumsum(mine) - mine, pair, mask=pair >= 0)
        found += tl.sum(mine)
    tl.store(counts + expert, found)
    for start in range(0, tokens, TOKENS):
        offset = start + tl.arange(0, TOKENS)
        tl.store(own + offset, -1, mask=(offset >= found) & (offset < tokens))


@group_pairs.kernel(
    "triton", when=lambda experts, count: runs_here(experts) and experts.is_contiguous() and len(experts) > 0, graph_safe=True
)
def group_pairs_triton(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, chosen = experts.shape
    counts = torch.empty(count, dtype=torch.int32, device=experts.device)
    pairs = torch.empty(count, tokens, dtype=torch.int32, device=experts.device)
    padded = next_power_of_2(chosen)
    at_once, warps = (_FEW_TOKENS, 4) if tokens <= _FEW_TOKENS else (max(_FEW_TOKENS, _LISTED // padded), 8)
    _group[(count,)](
        experts, counts, pairs, tokens, chosen, padded, at_once, num_warps=warps, **dependent_launch(tokens, experts.device)
    )
    return counts, pairs


# ---- Grouped GEMMs


@dataclass(frozen=True)
class Tile:
    rows: int  # pairs
    columns: int  # rows of the weight
    inner: int
    warps: int
    stages: int


def choose_tile(pairs: int, count: int, itemsize: int) -> Tile:
    """By how many rows an expert has if all have as many.

    With few of them the time is that of reading the weights, and a row costs nothing as long as it is in the same tile; with
    many the matrix units are to be kept busy.
    """
    if itemsize == 4:  # no model is served so
        return Tile(16, 32, 32, warps=4, stages=2)
    each = pairs / count
    if each <= 8:
        return Tile(16, 64, 128, warps=4, stages=4)
    inner = 128 // itemsize
    if each <= 64:
        return Tile(64, 128, inner, warps=4, stages=4)
    return Tile(128, 128 if each <= 256 else 256, inner, warps=8, stages=3)


def row_tiles(pairs: int, count: int, rows: int) -> int:
    """Most tiles that pairs can fill: an expert's last one may have a single pair."""
    return (pairs + min(pairs, count) * (rows - 1)) // rows


@triton.jit
def _own_tile(counts, tile, COUNT: tl.constexpr, COUNT_PADDED: tl.constexpr, ROWS: tl.constexpr):
    """(expert, which of its tiles, how many pairs it has); where no pairs are left, expert COUNT_PADDED or none of its own."""
    number = tl.arange(0, COUNT_PADDED)
    sizes = tl.load(counts + number, mask=number < COUNT, other=0)
    tiles = (sizes + ROWS - 1) // ROWS
    before = tl.cumsum(tiles) <= tile
    expert = tl.sum(before.to(tl.int32))
    first = tl.sum(tl.where(before, tiles, 0))
    return expert, tile - first, tl.sum(tl.where(number == expert, sizes, 0))


@triton.jit(do_not_specialize=["tokens"])
def _product(
    x, x_scale, weight, weight_scale, pair_weights, out, experts, counts, pairs, tokens, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, CHOSEN: tl.constexpr, COUNT: tl.constexpr, COUNT_PADDED: tl.constexpr, SORTED: tl.constexpr,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of one of the two GEMMs. FIRST: out[pair] = silu(gate) * up of x[pair // CHOSEN], the weight [COUNT, 2 * WIDTH,
    SIZE]. Else out[pair] = the pair's weight times the product with x[pair], the weight [COUNT, WIDTH, SIZE]."""
    OWN: tl.constexpr = COLUMNS // 2 if FIRST else COLUMNS  # columns of the result
    ACROSS: tl.constexpr = (WIDTH + OWN - 1) // OWN
    tile = tl.program_id(0) // ACROSS
    if SORTED:
        expert, which, size = _own_tile(counts, tile, COUNT, COUNT_PADDED, ROWS)
        if which * ROWS >= size:
            return
        offset = which * ROWS + tl.arange(0, ROWS)
        inside = offset < size
        pair = tl.load(pairs + expert.to(tl.int64) * tokens + offset, mask=inside, other=0)
    else:
        expert = tl.load(experts + tile)
        if expert < 0:
            return
        inside = tl.arange(0, ROWS) == 0
        pair = tl.zeros((ROWS,), tl.int32) + tile
    source = ((pair // CHOSEN) if FIRST else pair).to(tl.int64)

    column = (tl.program_id(0) % ACROSS) * OWN + tl.arange(0, OWN)
    offset = tl.arange(0, COLUMNS)
    weight_row = (tl.program_id(0) % ACROSS) * OWN + ((offset // 2) if FIRST else offset)
    weight_row = tl.minimum(weight_row, WIDTH - 1)  # beyond the last: read again, not stored
    if FIRST:
        weight_row += (offset % 2) * WIDTH
    HEIGHT: tl.constexpr = 2 * WIDTH if FIRST else WIDTH
    weight += (expert.to(tl.int64) * HEIGHT + weight_row)[None, :] * SIZE
    x += source[:, None] * SIZE
    STEPS: tl.constexpr = (SIZE + INNER - 1) // INNER
    if BLOCKS:
        BANDS: tl.constexpr = (HEIGHT + BLOCK - 1) // BLOCK
        weight_scale += (expert.to(tl.int64) * BANDS + weight_row // BLOCK) * STEPS
        x_scale += source * STEPS
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(STEPS):
        inner = step * INNER + tl.arange(0, INNER)
        if SIZE % INNER == 0:
            left = tl.load(x + inner[None, :], mask=inside[:, None], other=0.0)
            right = tl.load(weight + inner[:, None])
        else:
            left = tl.load(x + inner[None, :], mask=inside[:, None] & (inner[None, :] < SIZE), other=0.0)
            right = tl.load(weight + inner[:, None], mask=inner[:, None] < SIZE, other=0.0)
        if BLOCKS:
            scale = tl.load(x_scale + step, mask=inside, other=0.0)[:, None] * tl.load(weight_scale + step)[None, :]
            total += tl.dot(left, right) * scale
        else:
            total = tl.dot(left, right, total, input_precision="ieee")
    launch_dependents(PDL)
    if CHANNELS:
        total *= tl.load(x_scale + source, mask=inside, other=0.0)[:, None]
        total *= tl.load(weight_scale + expert.to(tl.int64) * HEIGHT + weight_row)[None, :]

    kind = out.dtype.element_ty  # rounded where the separate ops round
    if FIRST:
        gate, up = tl.split(tl.reshape(total.to(kind), (ROWS, OWN, 2)))
        wide = gate.to(tl.float32)
        silu = (wide / (1.0 + tl.exp(-wide))).to(kind).to(tl.float32)
        result = silu * up.to(tl.float32)
    else:
        result = total * tl.load(pair_weights + pair, mask=inside, other=0.0)[:, None]
    target = out + pair.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(target, result.to(kind), mask=inside[:, None] & (column[None, :] < WIDTH))


def _run(
    x: torch.Tensor, experts: torch.Tensor, lists: Lists | None, weight: torch.Tensor, weight_scale: torch.Tensor | None,
    pair_weights: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """[pairs, width]. The first GEMM if there are no weights of pairs."""
    first = pair_weights is None
    (tokens, chosen), (count, height, size) = experts.shape, weight.shape
    pairs, width = tokens * chosen, height // 2 if first else height
    out = x.new_empty(pairs, width)
    x_scale = None
    if weight_scale is not None:
        x, x_scale = quantise_rows(x, scale_group(weight_scale, size))
    tile = choose_tile(pairs if lists is not None else 1, count, weight.itemsize)
    rows = row_tiles(pairs, count, tile.rows) if lists is not None else pairs
    counts, order = (experts, experts) if lists is None else lists
    blocks = weight_scale is not None and weight_scale.ndim == 3
    _product[(rows * triton.cdiv(width, tile.columns // 2 if first else tile.columns),)](
        x, x if x_scale is None else x_scale, weight, x if weight_scale is None else weight_scale,
        x if pair_weights is None else pair_weights, out, experts, counts, order, tokens, width, size, chosen, count,
        next_power_of_2(count), lists is not None, first, weight_scale is not None and not blocks, blocks, tile.rows,
        tile.columns, tile.inner, BLOCK, has_dependent_launch(x.device), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def _takes(
    x: torch.Tensor, experts: torch.Tensor, lists: Lists | None, weight: torch.Tensor, weight_scale: torch.Tensor | None,
    pair_weights: torch.Tensor | None = None,
) -> bool:  # fmt: skip
    plain = all(tensor is None or tensor.is_contiguous() for tensor in (x, experts, weight, weight_scale, pair_weights))
    aligned = weight.shape[2] * weight.itemsize % 16 == 0
    # Matrix units add products of 8-bit floats too roughly for float32.
    return plain and aligned and len(x) > 0 and runs_here(x) and not (x.is_cuda and x.itemsize == 4 and weight.itemsize == 1)


@expert_gate_up.kernel("triton", when=_takes, graph_safe=True)
def expert_gate_up_triton(
    x: torch.Tensor, experts: torch.Tensor, lists: Lists | None, weight: torch.Tensor, weight_scale: torch.Tensor | None
) -> torch.Tensor:
    return _run(x, experts, lists, weight, weight_scale, None)


@expert_down.kernel("triton", when=_takes, graph_safe=True)
def expert_down_triton(
    x: torch.Tensor, experts: torch.Tensor, lists: Lists | None, weight: torch.Tensor, weight_scale: torch.Tensor | None,
    pair_weights: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    return _run(x, experts, lists, weight, weight_scale, pair_weights).view(*experts.shape, -1)


# ---- The sum


@triton.jit
def _sum(outputs, residual, experts, out, CHOSEN: tl.constexpr, SIZE: tl.constexpr, ADDS: tl.constexpr,
         SOME: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    wait_for_dependencies(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < SIZE
    total = tl.zeros((COLUMNS,), tl.float32)
    for rank in tl.static_range(CHOSEN):
        there = inside
        if SOME:
            there = inside & (tl.load(experts + token * CHOSEN + rank) >= 0)
        total += tl.load(outputs + (token * CHOSEN + rank) * SIZE + column, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        total += tl.load(residual + token * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * SIZE + column, total.to(out.dtype.element_ty), mask=inside)


def _can_sum(outputs: torch.Tensor, residual: torch.Tensor | None, experts: torch.Tensor | None = None) -> bool:
    contiguous = all(tensor is None or tensor.is_contiguous() for tensor in (outputs, residual, experts))
    return runs_here(outputs) and contiguous and outputs.numel() > 0


@sum_expert_outputs.kernel("triton", when=_can_sum, graph_safe=True)
def sum_expert_outputs_triton(
    outputs: torch.Tensor, residual: torch.Tensor | None, experts: torch.Tensor | None = None
) -> torch.Tensor:
    tokens, chosen, size = outputs.shape
    out = outputs.new_empty(tokens, size) if residual is None else residual
    grid = (tokens, triton.cdiv(size, _SUMMED))
    _sum[grid](
        outputs, out, out if experts is None else experts, out, chosen, size, residual is not None, experts is not None,
        _SUMMED, **dependent_launch(tokens, outputs.device),
    )  # fmt: skip
    return out
