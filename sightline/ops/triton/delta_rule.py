"""The gated delta rule: a kernel for single tokens, which reads and writes the state once, and three for prompts.

    single tokens   a program has some columns of a head's state, which no other column's numbers depend on
    prepare         a program has a chunk of 64 tokens and a head: the triangular system, U, W and the scores within the chunk
    scan            a program has some columns of a head's state, and goes through the chunks of its sequence

Everything is float32 but the inputs. Matrix units take 16-bit floats: what is none is the sum of two (_halves), which keeps 16
bits of it where tf32 would keep 10, and queries, keys and values are multiplied as they are.
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
_PREPARE_WARPS = 4  # this and the following as measured on an H200
_SCAN_COLUMNS, _SCAN_WARPS, _SCAN_STAGES = 32, 4, 2
_TOKEN_WARPS = 4
_HALVES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


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
def _halves(x, HALF: tl.constexpr):
    """float32 as the sum of two 16-bit floats: matrix units take those, and no number of theirs but the rounding is lost."""
    high = x.to(HALF)
    return high, (x - high.to(tl.float32)).to(HALF)


@triton.jit
def _multiply(left, right, total, HALF: tl.constexpr):
    """total + left @ right, both float32, to about 16 bits; in float32 where HALF is None."""
    if HALF is None:
        return tl.dot(left, right, total, input_precision="ieee")
    else:
        left_high, left_low = _halves(left, HALF)
        right_high, right_low = _halves(right, HALF)
        total = tl.dot(left_low, right_high, total)
        total = tl.dot(left_high, right_low, total)
        return tl.dot(left_high, right_high, total)


@triton.jit
def _multiply_input(left, right, total, HALF: tl.constexpr):
    """The same where right is an input, which is a 16-bit float as it is."""
    if HALF is None:
        return tl.dot(left, right, total, input_precision="ieee")
    else:
        high, low = _halves(left, HALF)
        return tl.dot(high, right, tl.dot(low, right, total))


@triton.jit
def _input_multiply(left, right, total, HALF: tl.constexpr):
    """The same where left is."""
    if HALF is None:
        return tl.dot(left, right, total, input_precision="ieee")
    else:
        high, low = _halves(right, HALF)
        return tl.dot(left, high, tl.dot(left, low, total))


@triton.jit
def _inverse(system, CHUNK: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr):
    """(I + system)^-1, where system is strictly lower triangular. [CHUNK, CHUNK]

    Blocks on the diagonal row by row, all of them side by side. With D their inverses and N what is left of them, M = D N has
    no fourth power (there are four blocks a side), so that (I + M)^-1 = (I + M^2) (I - M), and that times D is the result.
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
    nothing = tl.zeros([CHUNK, CHUNK], tl.float32)
    below = _multiply(inverses, rest, nothing, HALF)
    lower = inverses - _multiply(below, inverses, nothing, HALF)
    return _multiply(_multiply(below, below, nothing, HALF), lower, lower, HALF)


@triton.jit
def _length(rows):
    """1 / length of each row [tokens, dim], whatever their dtype."""
    rows = rows.to(tl.float32)
    return tl.rsqrt(tl.sum(rows * rows, 1) + 1e-6)


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _prepare(
    qkv, b, a, a_log, dt_bias, query_starts, u, w, within, rates, sequences, tokens, b_stride, a_stride, scale,
    key_heads: tl.constexpr, value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, SEQUENCES: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Chunks are numbered over all sequences that have more than one new token; there may be more programs than chunks.

    What a token's queries and keys are multiplied by stands in `rates`, so that the scan takes the inputs as they are.
    """
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
        dim, column = tl.arange(0, key_dim)[None, :], tl.arange(0, value_dim)[None, :]
        own_keys = (head // (value_heads // key_heads)) * key_dim
        k = tl.load(rows + keys + own_keys + dim, mask=known[:, None], other=0.0)
        unit_k = _length(k)
        beta, g = _rates(
            tl.load(b + token * b_stride + head, mask=known, other=0.0),
            tl.load(a + token * a_stride + head, mask=known, other=0.0), tl.load(a_log + head), tl.load(dt_bias + head),
        )  # fmt: skip
        beta, g = tl.where(known, beta, 0.0), tl.where(known, g, 0.0)
        sums = tl.cumsum(g, 0)
        not_later = offset[:, None] >= offset[None, :]
        fades = tl.exp(tl.where(not_later, sums[:, None] - sums[None, :], float("-inf"))) * unit_k[None, :]
        scores = tl.dot(k, tl.trans(k), input_precision="ieee") * fades
        strictly = offset[:, None] > offset[None, :]
        solved = _inverse(tl.where(strictly, (beta * unit_k)[:, None] * scores, 0.0), CHUNK, BLOCK, HALF)
        own = (token * value_heads + head)[:, None]
        v = tl.load(rows + 2 * keys + head * value_dim + column, mask=known[:, None], other=0.0)
        new = _multiply_input(solved * beta[None, :], v, tl.zeros([CHUNK, value_dim], tl.float32), HALF)
        tl.store(u + own * value_dim + column, new, mask=known[:, None])
        seen = solved * (beta * tl.exp(sums) * unit_k)[None, :]
        seen = _multiply_input(seen, k, tl.zeros([CHUNK, key_dim], tl.float32), HALF)
        q = tl.load(rows + own_keys + dim, mask=known[:, None], other=0.0)
        unit_q = _length(q) * scale
        attended = tl.dot(q, tl.trans(k), input_precision="ieee") * fades * unit_q[:, None]
        if HALF is None:
            tl.store(w + own * key_dim + dim, seen, mask=known[:, None])
            tl.store(within + own * CHUNK + offset[None, :], attended, mask=known[:, None])
        else:
            all_rows = tokens.to(tl.int64) * value_heads
            high, low = _halves(seen, HALF)
            tl.store(w + own * key_dim + dim, high, mask=known[:, None])
            tl.store(w + (all_rows + own) * key_dim + dim, low, mask=known[:, None])
            high, low = _halves(attended, HALF)
            tl.store(within + own * CHUNK + offset[None, :], high, mask=known[:, None])
            tl.store(within + (all_rows + own) * CHUNK + offset[None, :], low, mask=known[:, None])
        whole = tl.sum(g, 0)
        mine = rates + head * tokens + token
        each = value_heads * tokens
        tl.store(mine, unit_q * tl.exp(sums), mask=known)
        tl.store(mine + each, unit_k * tl.exp(whole - sums), mask=known)
        tl.store(mine + 2 * each, tl.exp(whole) + tl.zeros_like(sums), mask=known)


@triton.jit(do_not_specialize=["tokens"])
def _scan(
    qkv, u, w, within, rates, kept, slots, fresh, query_starts, out, tokens, key_heads: tl.constexpr, value_heads: tl.constexpr,
    key_dim: tl.constexpr, value_dim: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr,
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
        all_rows = tokens.to(tl.int64) * value_heads
        each = value_heads * tokens
        for first in range(start, end, CHUNK):
            token = (first + offset).to(tl.int64)
            known = token < end
            own = (token * value_heads + head)[:, None]
            rows = (qkv + token * (2 * keys + value_heads * value_dim))[:, None]
            mine = rates + head * tokens
            rate_q = tl.load(mine + token, mask=known, other=0.0)
            rate_k = tl.load(mine + each + token, mask=known, other=0.0)
            whole = tl.load(mine + 2 * each + first)
            q = tl.load(rows + own_keys + row[None, :], mask=known[:, None], other=0.0)
            k = tl.load(rows + keys + own_keys + row[None, :], mask=known[:, None], other=0.0)
            new = tl.load(u + own * value_dim + column[None, :], mask=known[:, None], other=0.0)
            seen = tl.load(w + own * key_dim + row[None, :], mask=known[:, None], other=0.0)
            attended = tl.load(within + own * CHUNK + offset[None, :], mask=known[:, None], other=0.0)
            nothing = tl.zeros([CHUNK, COLUMNS], tl.float32)
            if HALF is None:
                new -= tl.dot(seen, tile, input_precision="ieee")
                found = tl.dot(q, tile, input_precision="ieee") * rate_q[:, None]
                found += tl.dot(attended, new, input_precision="ieee")
            else:
                high, low = _halves(tile, HALF)
                seen_low = tl.load(w + (all_rows + own) * key_dim + row[None, :], mask=known[:, None], other=0.0)
                new -= tl.dot(seen, high, tl.dot(seen, low, tl.dot(seen_low, high, nothing)))
                found = tl.dot(q, high, tl.dot(q, low, nothing)) * rate_q[:, None]
                high, low = _halves(new, HALF)
                attended_low = tl.load(within + (all_rows + own) * CHUNK + offset[None, :], mask=known[:, None], other=0.0)
                found = tl.dot(attended, high, tl.dot(attended, low, tl.dot(attended_low, high, found)))
            tl.store(out + own * value_dim + column[None, :], found.to(out.dtype.element_ty), mask=known[:, None])
            tile = _input_multiply(tl.trans(k), new * rate_k[:, None], tile * whole, HALF)
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
    return min(32 if few else 64, value_dim)


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
        key_dim**-0.5, _key_heads(qkv, kept), value_heads, key_dim, value_dim, columns, num_warps=_TOKEN_WARPS,
        **dependent_launch(count, qkv.device),
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
    half = _HALVES.get(qkv.dtype)  # None: all is float32, and no number is taken apart
    halves = 1 if half is None else 2
    u, rates = (
        torch.empty(size, dtype=torch.float32, device=qkv.device)
        for size in (tokens * value_heads * value_dim, 3 * tokens * value_heads)
    )
    w, within = (qkv.new_empty(halves * tokens * value_heads * width) for width in (key_dim, CHUNK))
    starts = sequences.query_starts
    # Each sequence fills some chunks and may begin one more: enough programs for any lengths of so many tokens.
    _prepare[(tokens // CHUNK + count, value_heads)](
        qkv, b, a, a_log, dt_bias, starts, u, w, within, rates, count, tokens, b.stride(0), a.stride(0), key_dim**-0.5, *sizes,
        CHUNK, _BLOCK, SEQUENCES_AT_ONCE, half, num_warps=_PREPARE_WARPS,
    )  # fmt: skip
    columns = min(_SCAN_COLUMNS, value_dim)
    _scan[(count, value_heads, value_dim // columns)](
        qkv, u, w, within, rates, kept, states.slots, states.fresh, starts, out, tokens, *sizes, CHUNK, columns, half,
        num_warps=_SCAN_WARPS, num_stages=_SCAN_STAGES,
    )  # fmt: skip
    return out
