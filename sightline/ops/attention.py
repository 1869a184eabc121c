"""Attention over segments (the tower) and over pages of keys and values (the language model), and the store into pages."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.paged_cache import PagedCache, quantised_cache
from sightline.ops.pages import gathered_bytes, rows_of
from sightline.ops.sequences import PagedSequences
from sightline.ops.workspace import Workspace

# Not cuDNN: it makes a plan for each new length, some 100 ms, and a sequence that decodes has a new length every step.
_PAGED_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Backends of attention that users can choose (attention_backend, mm_attention_backend).
FA4, SDPA, TRITON = "fa4", "sdpa", "triton"
_TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(1.6e-2, 1.6e-2)}


def _segments_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for heads, head_dim, lengths in ((2, 8, (3, 1, 5)), (4, 72, (64, 17)), (2, 80, (100,)), (2, 128, (16, 16, 16, 5))):
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        qkv = make.normal(starts[-1], 3, heads, head_dim)
        yield {
            "q": qkv[:, 0],
            "k": qkv[:, 1],
            "v": qkv[:, 2],
            "segment_starts": make.tensor(starts),
            "segment_lengths": lengths,
            "scale": head_dim**-0.5,
        }
    long = make.normal(1100, 3, 2, 80)
    q, k, v = long.unbind(1)
    one = make.tensor((0, 1100))
    yield {"q": q, "k": k, "v": v, "segment_starts": one, "segment_lengths": (1100,), "scale": 80**-0.5}
    padded = make.normal(40, 3, 2, 80)  # heads of 72 in places of 80
    padded[..., 72:] = 0
    q, k, v = padded.unbind(1)
    two = make.tensor((0, 30, 40))
    yield {"q": q, "k": k, "v": v, "segment_starts": two, "segment_lengths": (30, 10), "scale": 72**-0.5}


@op(examples=_segments_examples, tolerances=_TOLERANCES, backend=SDPA)
def segment_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment_starts: torch.Tensor,
    segment_lengths: tuple[int, ...],
    scale: float,
) -> torch.Tensor:
    """softmax(scale * q k) v inside each segment, none across. Returns [tokens, heads, head_dim].

    q, k, v [tokens, heads, head_dim], possibly strided views; segment_starts [segments + 1] int32 on the device;
    segment_lengths the same on the host, so that nothing waits for the device.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    start = 0
    for length, same in _runs(segment_lengths):  # equal neighbours go through one batched call
        end = start + length * same
        queries, keys, values = (x[start:end].unflatten(0, (same, length)).transpose(1, 2) for x in (q, k, v))
        attended = F.scaled_dot_product_attention(queries, keys, values, scale=scale)
        out[start:end] = attended.transpose(1, 2).flatten(0, 1)
        start = end
    return out


# Segments of at least so many tokens are faster through cuDNN than through torch's own kernels, by places of a head up to the
# number named; measured on an H200. For each new length cuDNN makes a plan, some 100 ms once: not worth it for short ones.
CUDNN = "cudnn"
CUDNN_FROM = {96: 1024, 128: 1024}


def _is_for_cudnn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment_starts: torch.Tensor,
    segment_lengths: tuple[int, ...],
    scale: float,
) -> bool:
    least = next((length for size, length in CUDNN_FROM.items() if q.shape[-1] <= size), None)
    sized = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0
    return sized and least is not None and min(segment_lengths) >= least


@segment_attention.kernel(CUDNN, when=_is_for_cudnn, backend=SDPA)
def segment_attention_cudnn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment_starts: torch.Tensor,
    segment_lengths: tuple[int, ...],
    scale: float,
) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        return segment_attention.definition(q, k, v, segment_starts, segment_lengths, scale)


def _queries_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for segments, keys, heads, head_dim in ((1, 1, 2, 8), (3, 17, 4, 72), (5, 100, 2, 64)):
        kv = make.normal(segments, keys, 2, heads, head_dim)
        q = make.normal(segments, heads, head_dim)
        yield {"q": q, "k": kv[:, :, 0], "v": kv[:, :, 1], "scale": head_dim**-0.5}


@op(examples=_queries_examples, tolerances=_TOLERANCES)
def query_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """One query of each of several segments of equal length, which is none of their keys. Returns [segments, heads, head_dim].

    q [segments, heads, head_dim], k, v [segments, keys, heads, head_dim], possibly strided views.
    """
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q[:, :, None], keys, values, scale=scale)[:, :, 0]


def _runs(lengths: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(length, how many in a row) for neighbours of equal length; empty segments vanish."""
    index = 0
    while index < len(lengths):
        end = index
        while end < len(lengths) and lengths[end] == lengths[index]:
            end += 1
        if lengths[index]:
            yield lengths[index], end - index
        index = end


def _paged_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases = (
        # heads, kv_heads, head_dim, page_size, query lengths, context lengths (queries included)
        (4, 2, 8, 4, (3, 1, 6), (3, 9, 10)),
        (8, 1, 64, 16, (1, 1, 1), (1, 16, 33)),
        (4, 4, 128, 16, (40,), (70,)),
        (8, 2, 256, 16, (5, 1), (5, 20)),
        (8, 2, 128, 16, (1, 1), (700, 300)),
        (4, 2, 64, 16, (1,) * 9, (1, 900, 30, 1, 64, 2, 65, 17, 1)),  # one much longer than the others
        (2, 1, 128, 16, (1, 3100, 3), (20, 3400, 150)),  # so many queries read each key that gathering keys is worth it
    )
    for heads, kv_heads, head_dim, page_size, queries, contexts in cases:
        needed = [-(-context // page_size) for context in contexts]
        pages = make.permutation(sum(needed) + 2, dtype=torch.int32)
        table = torch.zeros(len(contexts), max(needed), dtype=torch.int32, device=make.device)
        first = 0
        for row, count in enumerate(needed):
            table[row, :count] = pages[first : first + count]
            first += count
        starts = [0]
        for length in queries:
            starts.append(starts[-1] + length)
        workspace = Workspace("gathered", gathered_bytes(rows_of(contexts, 128), kv_heads, head_dim, make.dtype), make.device)
        cache = PagedCache(*(make.normal(len(pages), page_size, kv_heads, head_dim) for _ in range(2)))
        example = {
            "q": make.normal(starts[-1], heads, head_dim),
            "cache": cache,
            "sequences": PagedSequences(table, make.tensor(starts), make.tensor(contexts), queries, contexts, workspace),
        }
        yield example
        yield {**example, "cache": quantised_cache(cache)}


@op(examples=_paged_examples, tolerances=_TOLERANCES, backend=SDPA)
def paged_attention(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> torch.Tensor:
    """Causal attention of each sequence's new tokens over all its tokens. q and what is returned [tokens, heads, head_dim].

    Query i of n sees the first context - n + i + 1 tokens. Heads are grouped: query head h reads key/value head
    h * kv_heads // heads.
    """
    out = torch.empty_like(q)
    attend_chunks(out, q, cache, sequences)
    return out


def attend_chunks(out: torch.Tensor, q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> None:
    """Fills `out` sequence by sequence."""
    page_size, kv_heads = cache.keys.shape[1:3]
    start = 0
    with sdpa_kernel(_PAGED_BACKENDS):
        lengths = zip(sequences.query_lengths_host, sequences.context_lengths_host, strict=True)
        for row, (queries, context) in enumerate(lengths):
            part, start = q[start : start + queries], start + queries
            pages = sequences.page_table[row, : -(-context // page_size)].long()
            keys, values = (found[:context].transpose(0, 1)[None] for found in cache.read(pages, q.dtype))
            if queries == 1:
                # The query heads that share a key/value head are like so many queries of it, and all see every key.
                grouped = part.reshape(1, kv_heads, -1, q.shape[2])
                out[start - 1] = F.scaled_dot_product_attention(grouped, keys, values).reshape(q.shape[1:])
            else:
                out[start - queries : start] = _causal_attention(part, keys, values)


def _causal_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A sequence's newest tokens over all of it. q [queries, heads, head_dim], keys and values [1, kv_heads, context, …]."""
    queries, context = q.shape[0], keys.shape[2]
    groups = q.shape[1] // keys.shape[1]
    if groups > 1:  # the fast backends take a mask only with equal heads
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    mask = None
    if queries < context:
        mask = torch.ones(queries, context, dtype=torch.bool, device=q.device).tril(context - queries)
    attended = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys, values, mask, is_causal=mask is None)
    return attended[0].transpose(0, 1)
