"""The gated delta rule: a kernel for single tokens, which reads and writes the state once, and three for prompts.

    single tokens   a program has some columns of a head's state, which no other column's numbers depend on
    prepare         a program has a chunk of 64 tokens and a head: the triangular system, U, W and the scores within the chunk
    scan            a program has some columns of a head's state, and goes through the chunks of its sequence

Everything is float32 but the inputs; products of bfloat16 models are in tf32. Numbers of tiles are not measured yet.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.delta_rule import CHUNK, gated_delta_rule
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.causal_conv import SEQUENCES_AT_ONCE, one_token_each
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies

_BLOCK = 16  # rows of the blocks whose inverses are found row by row
_PROGRAMS = 512  # of single tokens, wanted at least: about four per multiprocessor
_SCAN_COLUMNS = 32


@triton.jit
def _rates(b, a, a_log, dt_bias):
    """beta and g. As the definition rounds: beta to b's dtype."""
    beta = (1.0 / (1.0 + tl.exp(-b.to(tl.float32)))).to(b.dtype).to(tl.float32)
    x = a.to(tl.float32) + dt_bias
    softplus = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    return beta, -tl.exp(a_log) * softplus


@triton.jit
def _delta_token(
    qkv, b, a, a_log, dt_bias, kept, slots, fresh, query_starts, out, b_stride, a_stride, scale,
    key_heads: tl.constexpr, value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Sequences with more than one new token are left alone."""
    wait_for_dependencies(PDL)
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, key_dim)
    token = tl.load(query_starts + sequence).to(tl.int64)
    if tl.load(query_starts + sequence + 1) - token == 1:
        keys: tl.constexpr = key_heads * key_dim
        mine = qkv + token * (2 * keys + value_heads * value_dim)
        own_keys = (head // (value_heads // key_heads)) * key_dim + row
        q = tl.load(mine + own_keys).to(tl.float32)
        k = tl.load(mine + keys + own_keys).to(tl.float32)
        v = tl.load(mine + 2 * keys + head * value_dim + column).to(tl.float32)
        beta, g = _rates(
            tl.load(b + token * b_stride + head), tl.load(a + token * a_stride + head), tl.load(a_log + head),
            tl.load(dt_bias + head),
        )  # fmt: skip
        q = q * tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * scale
        k = k * tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
        state = kept + ((tl.load(slots + sequence) * value_heads + head) * key_dim + row)[:, None] * value_dim + column[None, :]
        goes_on = (row >= 0) & (tl.load(fresh + sequence) == 0)
        tile = tl.load(state, mask=goes_on[:, None], other=0.0) * tl.exp(g)
        seen = tl.sum(tile * k[:, None], 0)
        tile += k[:, None] * (beta * (v - seen))[None, :]
        tl.store(state, tile)
        found = tl.sum(tile * q[:, None], 0)
        tl.store(out + (token * value_heads + head) * value_dim + column, found.to(out.dtype.element_ty))


@triton.jit
def _inverse(system, CHUNK: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """(I + system)^-1, where system is strictly lower triangular. [CHUNK, CHUNK]

    Blocks on the diagonal row by row, all of them side by side. With D their inverses and N what is left of them, M = D N has
    no fourth power (there are four blocks a side), so that (I + M)^-1 = I - M + M^2 - M^3, and that times D is the result.
    """
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    part = tl.arange(0, BLOCKS)
    same = part[:, None, None, None] == part[None, None, :, None]
    apart = tl.reshape(system, [BLOCKS, BLOCK, BLOCKS, BLOCK])
    found = -tl.sum(tl.where(same, apart, 0.0), 2)  # [BLOCKS, BLOCK, BLOCK]
    row = tl.arange(0, BLOCK)
    for index in range(1, BLOCK):
        mine = (row == index)[None, :, None]
        current = tl.sum(tl.where(mine, found, 0.0), 1)  # [BLOCKS, BLOCK]
        current += tl.sum(current[:, :, None] * found, 1)
        found = tl.where(mine, current[:, None, :], found)
    found += tl.where(row[None, :, None] == row[None, None, :], 1.0, 0.0)
    inverses = tl.reshape(tl.where(same, found[:, :, None, :], 0.0), [CHUNK, CHUNK])
    rest = tl.reshape(tl.where(same, 0.0, apart), [CHUNK, CHUNK])
    offset = tl.arange(0, CHUNK)
    one = tl.where(offset[:, None] == offset[None, :], 1.0, 0.0)
    below = tl.dot(inverses, rest, input_precision=PRECISION)
    square = tl.dot(below, below, input_precision=PRECISION)
    series = one - below + square - tl.dot(below, square, input_precision=PRECISION)
    return tl.dot(series, inverses, input_precision=PRECISION)


@triton.jit
def _unit_rows(pointer, known, key_dim: tl.constexpr):
    """Rows [CHUNK, key_dim], normalised to length 1; zeros where there is no token."""
    rows = tl.load(pointer + tl.arange(0, key_dim)[None, :], mask=known[:, None], other=0.0).to(tl.float32)
    return rows * tl.rsqrt(tl.sum(rows * rows, 1) + 1e-6)[:, None]


@triton.jit(do_not_specialize=["sequences"])
def _prepare(
    qkv, b, a, a_log, dt_bias, query_starts, u, w, within, faded, sequences, b_stride, a_stride, scale,
    key_heads: tl.constexpr, value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, SEQUENCES: tl.constexpr, PRECISION: tl.constexpr, INVERSE_PRECISION: tl.constexpr,
):  # fmt: skip
    """Chunks are numbered over all sequences that have more than one new token; there may be more programs than chunks."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    before, first, end = 0, 0, 0  # chunks of the sequences so far; the tokens that this chunk has
    for group in range(0, sequences, SEQUENCES):
        index = group + tl.arange(0, SEQUENCES)
        starts = tl.load(query_starts + index, mask=index < sequences, other=0)
        lengths = tl.load(query_starts + 1 + index, mask=index < sequences, other=0) - starts
        counts = tl.where(lengths > 1, (lengths + CHUNK - 1) // CHUNK, 0)
        upto = before + tl.cumsum(counts, 0)
        mine = (upto > chunk) & (upto - counts <= chunk)
        first += tl.sum(tl.where(mine, starts + (chunk - upto + counts) * CHUNK, 0), 0)
        end += tl.sum(tl.where(mine, starts + lengths, 0), 0)
        before += tl.sum(counts, 0)
    if first < end:
        offset = tl.arange(0, CHUNK)
        token = (first + offset).to(tl.int64)
        known = token < end
        keys: tl.constexpr = key_heads * key_dim
        rows = (qkv + token * (2 * keys + value_heads * value_dim))[:, None]
        own_keys = (head // (value_heads // key_heads)) * key_dim
        q = _unit_rows(rows + own_keys, known, key_dim) * scale
        k = _unit_rows(rows + keys + own_keys, known, key_dim)
        beta, g = _rates(
            tl.load(b + token * b_stride + head, mask=known, other=0.0),
            tl.load(a + token * a_stride + head, mask=known, other=0.0), tl.load(a_log + head), tl.load(dt_bias + head),
        )  # fmt: skip
        beta, g = tl.where(known, beta, 0.0), tl.where(known, g, 0.0)
        sums = tl.cumsum(g, 0)
        tl.store(faded + token * value_heads + head, sums, mask=known)
        not_later = offset[:, None] >= offset[None, :]
        fades = tl.exp(tl.where(not_later, sums[:, None] - sums[None, :], float("-inf")))
        scores = tl.dot(k, tl.trans(k), input_precision=PRECISION)
        strictly = offset[:, None] > offset[None, :]
        solved = _inverse(tl.where(strictly, beta[:, None] * scores * fades, 0.0), CHUNK, BLOCK, INVERSE_PRECISION)
        own = (token * value_heads + head)[:, None]
        column = tl.arange(0, value_dim)
        v = tl.load(rows + 2 * keys + head * value_dim + column[None, :], mask=known[:, None], other=0.0).to(tl.float32)
        new = tl.dot(solved, beta[:, None] * v, input_precision=PRECISION)
        tl.store(u + own * value_dim + column[None, :], new, mask=known[:, None])
        seen = tl.dot(solved, (beta * tl.exp(sums))[:, None] * k, input_precision=PRECISION)
        tl.store(w + own * key_dim + tl.arange(0, key_dim)[None, :], seen, mask=known[:, None])
        attended = tl.dot(q, tl.trans(k), input_precision=PRECISION) * fades
        tl.store(within + own * CHUNK + offset[None, :], attended, mask=known[:, None])


@triton.jit
def _scan(
    qkv, u, w, within, faded, kept, slots, fresh, query_starts, out, scale, key_heads: tl.constexpr, value_heads: tl.constexpr,
    key_dim: tl.constexpr, value_dim: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.load(query_starts + sequence)
    end = tl.load(query_starts + sequence + 1)
    if end - start > 1:
        keys: tl.constexpr = key_heads * key_dim
        own_keys = (head // (value_heads // key_heads)) * key_dim
        row, offset = tl.arange(0, key_dim), tl.arange(0, CHUNK)
        state = kept + ((tl.load(slots + sequence) * value_heads + head) * key_dim + row)[:, None] * value_dim + column[None, :]
        goes_on = (row >= 0) & (tl.load(fresh + sequence) == 0)
        tile = tl.load(state, mask=goes_on[:, None], other=0.0)
        for first in range(start, end, CHUNK):
            token = (first + offset).to(tl.int64)
            known = token < end
            own = (token * value_heads + head)[:, None]
            sums = tl.load(faded + token * value_heads + head, mask=known, other=0.0)
            last = tl.load(faded + (tl.minimum(first + CHUNK, end) - 1).to(tl.int64) * value_heads + head)
            rows = (qkv + token * (2 * keys + value_heads * value_dim))[:, None]
            seen = tl.load(w + own * key_dim + row[None, :], mask=known[:, None], other=0.0)
            new = tl.load(u + own * value_dim + column[None, :], mask=known[:, None], other=0.0)
            new -= tl.dot(seen, tile, input_precision=PRECISION)
            q = _unit_rows(rows + own_keys, known, key_dim) * (scale * tl.exp(sums))[:, None]
            attended = tl.load(within + own * CHUNK + offset[None, :], mask=known[:, None], other=0.0)
            found = tl.dot(q, tile, input_precision=PRECISION) + tl.dot(attended, new, input_precision=PRECISION)
            tl.store(out + own * value_dim + column[None, :], found.to(out.dtype.element_ty), mask=known[:, None])
            k = _unit_rows(rows + keys + own_keys, known, key_dim) * tl.exp(last - sums)[:, None]
            tile = tile * tl.exp(last) + tl.dot(tl.trans(k), new, input_precision=PRECISION)
        tl.store(state, tile)


def _takes(
    qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    kept: torch.Tensor,
    sequences: PagedSequences,
    states: StateIndices,
) -> bool:
    sizes = all(size >= 16 and size == next_power_of_2(size) for size in kept.shape[2:])
    strides = b.stride(1) == a.stride(1) == 1 and qkv.is_contiguous() and kept.is_contiguous()
    return runs_here(qkv) and qkv.numel() > 0 and sizes and strides


def _takes_one(
    qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    kept: torch.Tensor,
    sequences: PagedSequences,
    states: StateIndices,
) -> bool:
    return one_token_each(qkv, sequences) and _takes(qkv, b, a, a_log, dt_bias, kept, sequences, states)


def _columns(sequences: int, value_heads: int, value_dim: int) -> int:
    """Of a program with single tokens: fewer where there would not be enough programs to fill the chip. One of two numbers:
    each is a kernel to compile."""
    few = sequences * value_heads * value_dim < 32 * _PROGRAMS
    return min(16 if few else 32, value_dim)


@gated_delta_rule.kernel("triton, a token each", when=_takes_one, graph_safe=True)
def gated_delta_rule_tokens(
    qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    kept: torch.Tensor,
    sequences: PagedSequences,
    states: StateIndices,
) -> torch.Tensor:
    out = qkv.new_empty(qkv.shape[0], kept.shape[1], kept.shape[3])
    _launch_tokens(qkv, b, a, a_log, dt_bias, kept, sequences, states, out)
    return out


def _launch_tokens(
    qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    kept: torch.Tensor,
    sequences: PagedSequences,
    states: StateIndices,
    out: torch.Tensor,
) -> None:
    value_heads, key_dim, value_dim = kept.shape[1:]
    count = len(states.slots)
    columns = _columns(count, value_heads, value_dim)
    _delta_token[(count, value_heads, value_dim // columns)](
        qkv, b, a, a_log, dt_bias, kept, states.slots, states.fresh, sequences.query_starts, out, b.stride(0), a.stride(0),
        key_dim**-0.5, _key_heads(qkv, kept), value_heads, key_dim, value_dim, columns, **dependent_launch(count, qkv.device),
    )  # fmt: skip


def _key_heads(qkv: torch.Tensor, kept: torch.Tensor) -> int:
    value_heads, key_dim, value_dim = kept.shape[1:]
    return int(qkv.shape[1] - value_heads * value_dim) // (2 * key_dim)


@gated_delta_rule.kernel("triton", when=_takes, graph_safe=True)
def gated_delta_rule_chunks(
    qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    kept: torch.Tensor,
    sequences: PagedSequences,
    states: StateIndices,
) -> torch.Tensor:
    tokens, count = qkv.shape[0], len(states.slots)
    value_heads, key_dim, value_dim = kept.shape[1:]
    sizes = (_key_heads(qkv, kept), value_heads, key_dim, value_dim)
    out = qkv.new_empty(tokens, value_heads, value_dim)
    if min(sequences.query_lengths_host) == 1:
        _launch_tokens(qkv, b, a, a_log, dt_bias, kept, sequences, states, out)
    u, w, within, faded = (
        torch.empty(tokens, value_heads, width, dtype=torch.float32, device=qkv.device)
        for width in (value_dim, key_dim, CHUNK, 1)
    )
    exact = qkv.dtype == torch.float32
    precision, starts, scale = "ieee" if exact else "tf32", sequences.query_starts, key_dim**-0.5
    # Each sequence fills some chunks and may begin one more: enough programs for any lengths of so many tokens.
    _prepare[(tokens // CHUNK + count, value_heads)](
        qkv, b, a, a_log, dt_bias, starts, u, w, within, faded, count, b.stride(0), a.stride(0), scale, *sizes, CHUNK, _BLOCK,
        SEQUENCES_AT_ONCE, precision, "ieee" if exact else "tf32x3", num_warps=8,
    )  # fmt: skip
    columns = min(_SCAN_COLUMNS, value_dim)
    _scan[(count, value_heads, value_dim // columns)](
        qkv, u, w, within, faded, kept, states.slots, states.fresh, starts, out, scale, *sizes, CHUNK, columns, precision,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return out
