"""The short causal convolution: decoding in one launch, prompts in two.

What is kept of a sequence is read by whoever computes its first tokens and written from its last ones. For one new token each
that is the same program; for more the last inputs are written by a second kernel, when all have been read.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.causal_conv import causal_conv
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.ops.triton import runs_here
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies

SEQUENCES_AT_ONCE = 64  # that are looked through for those of tokens: no kernel is compiled for how many there are
_CHANNELS = 256  # of a program with one token
_TOKENS, _TILE_CHANNELS = 32, 128  # of a program with several


@triton.jit
def sequence_of(token, query_starts, sequences, BLOCK: tl.constexpr):
    """Of each token [n] its sequence, or `sequences` for those that belong to none."""
    number = tl.zeros_like(token)
    for first in range(0, sequences, BLOCK):
        index = first + tl.arange(0, BLOCK)
        ends = tl.load(query_starts + 1 + index, mask=index < sequences, other=2147483647)
        number += tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), 1)
    return number


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _conv_one(
    x, weight, kept, slots, fresh, out, x_stride, channels: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One new token of a sequence; what is kept moves up by one."""
    wait_for_dependencies(PDL)
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    mine = kept + tl.load(slots + sequence) * (WIDTH - 1) * channels + channel
    goes_on = inside & (tl.load(fresh + sequence) == 0)
    newest = tl.load(x + sequence * x_stride + channel, mask=inside, other=0.0)
    taps = weight + channel * WIDTH
    total = newest.to(tl.float32) * tl.load(taps + WIDTH - 1, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(WIDTH - 1):
        earlier = tl.load(mine + tap * channels, mask=goes_on, other=0.0)
        total += earlier.to(tl.float32) * tl.load(taps + tap, mask=inside, other=0.0).to(tl.float32)
        if tap > 0:
            tl.store(mine + (tap - 1) * channels, earlier, mask=inside)
    tl.store(mine + (WIDTH - 2) * channels, newest, mask=inside)
    tl.store(out + sequence * channels + channel, _silu(total).to(newest.dtype), mask=inside)


@triton.jit(do_not_specialize=["tokens", "sequences"])
def _conv(
    x, weight, kept, slots, fresh, query_starts, out, tokens, sequences, x_stride, channels: tl.constexpr, WIDTH: tl.constexpr,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    number = sequence_of(token, query_starts, sequences, SEQUENCES)
    real = (token < tokens) & (number < sequences)
    start = tl.load(query_starts + number, mask=real, other=0)
    slot = tl.load(slots + number, mask=real, other=0)
    goes_on = real & (tl.load(fresh + number, mask=real, other=1) == 0)
    inside = (channel < channels)[None, :]
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for tap in tl.static_range(WIDTH):
        source = token - (WIDTH - 1) + tap
        new = real & (source >= start)
        here = tl.load(x + source.to(tl.int64)[:, None] * x_stride + channel[None, :], mask=new[:, None] & inside, other=0.0)
        gain = tl.load(weight + channel * WIDTH + tap, mask=channel < channels, other=0.0).to(tl.float32)
        total += here.to(tl.float32) * gain[None, :]
    looks_back = goes_on & (token - start < WIDTH - 1)
    if tl.max(looks_back.to(tl.int32), 0) > 0:  # few tiles have the first tokens of a sequence
        for tap in tl.static_range(WIDTH - 1):
            source = token - (WIDTH - 1) + tap
            old = looks_back & (source < start)
            row = slot * (WIDTH - 1) + source - start + WIDTH - 1
            there = tl.load(kept + row[:, None] * channels + channel[None, :], mask=old[:, None] & inside, other=0.0)
            gain = tl.load(weight + channel * WIDTH + tap, mask=channel < channels, other=0.0).to(tl.float32)
            total += there.to(tl.float32) * gain[None, :]
    offset = token.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out + offset, _silu(total).to(out.dtype.element_ty), mask=(token < tokens)[:, None] & inside)


@triton.jit
def _keep_last(
    x, kept, slots, fresh, query_starts, x_stride, channels: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last inputs of a sequence. In ascending order, so that one which only moves up is read before it is written over."""
    sequence = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    start = tl.load(query_starts + sequence).to(tl.int64)
    length = tl.load(query_starts + sequence + 1).to(tl.int64) - start
    if length > 0:
        mine = kept + tl.load(slots + sequence) * (WIDTH - 1) * channels + channel
        goes_on = tl.load(fresh + sequence) == 0
        for offset in tl.static_range(WIDTH - 1):
            source = length - (WIDTH - 1) + offset
            new = tl.load(x + (start + source) * x_stride + channel, mask=inside & (source >= 0), other=0.0)
            old = tl.load(mine + (offset + length) * channels, mask=inside & (source < 0) & goes_on, other=0.0)
            tl.store(mine + offset * channels, tl.where(source >= 0, new, old), mask=inside)


def one_token_each(x: torch.Tensor, sequences: PagedSequences) -> bool:
    """Where a graph has room for as many tokens as sequences that does not mean one of each."""
    return len(sequences.query_lengths_host) == x.shape[0] and sequences.one_query_each


def _takes(x: torch.Tensor, weight: torch.Tensor, kept: torch.Tensor, sequences: PagedSequences, states: StateIndices) -> bool:
    return runs_here(x) and x.numel() > 0 and x.stride(1) == 1 and weight.is_contiguous() and kept.is_contiguous()


def _takes_one(
    x: torch.Tensor, weight: torch.Tensor, kept: torch.Tensor, sequences: PagedSequences, states: StateIndices
) -> bool:
    return one_token_each(x, sequences) and _takes(x, weight, kept, sequences, states)


@causal_conv.kernel("triton, a token each", when=_takes_one, graph_safe=True)
def causal_conv_one(
    x: torch.Tensor, weight: torch.Tensor, kept: torch.Tensor, sequences: PagedSequences, states: StateIndices
) -> torch.Tensor:
    count, channels = x.shape
    out = x.new_empty(count, channels)
    _conv_one[(count, triton.cdiv(channels, _CHANNELS))](
        x, weight, kept, states.slots, states.fresh, out, x.stride(0), channels, weight.shape[1], _CHANNELS,
        **dependent_launch(count, x.device),
    )  # fmt: skip
    return out


@causal_conv.kernel("triton", when=_takes, graph_safe=True)
def causal_conv_triton(
    x: torch.Tensor, weight: torch.Tensor, kept: torch.Tensor, sequences: PagedSequences, states: StateIndices
) -> torch.Tensor:
    tokens, channels = x.shape
    starts, count, width = sequences.query_starts, len(states.slots), weight.shape[1]
    out = x.new_empty(tokens, channels)
    _conv[(triton.cdiv(tokens, _TOKENS), triton.cdiv(channels, _TILE_CHANNELS))](
        x, weight, kept, states.slots, states.fresh, starts, out, tokens, count, x.stride(0), channels, width,
        _TOKENS, _TILE_CHANNELS, SEQUENCES_AT_ONCE,
    )  # fmt: skip
    _keep_last[(count, triton.cdiv(channels, _CHANNELS))](
        x, kept, states.slots, states.fresh, starts, x.stride(0), channels, width, _CHANNELS
    )
    return out
