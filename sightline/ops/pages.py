"""Keys and values out of their pages, in a row: attention reads them faster so, where many queries read each of them.

And whole pages copied to others, in all layers.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sightline.ops.dispatch import EXACT, ExampleMaker, op
from sightline.ops.paged_cache import PagedCache, quantised_cache
from sightline.ops.workspace import Part, Workspace, bytes_for

GATHER_FROM = 1536  # queries that read a key, on average over all keys
MOST_GATHERED = 2**18  # rows
KEYS_AT_ONCE = {64: 128, 128: 128, 256: 80}  # that a program of flash-attn-4 takes, by head size: sequences begin at multiples
_MOST_KEYS_AT_ONCE = max(KEYS_AT_ONCE.values())


def is_worth_gathering(head_dim: int, queries: tuple[int, ...], contexts: tuple[int, ...]) -> bool:
    """Keys in a row come through the chip's copy engine, keys in pages token by token; but gathering copies each key once.

    Attention asks it, and so do those who choose graphs, which never gather. On an H200, microseconds over pages, and gathered
    with the gathering: 80 and 92 for a prompt of 2,089 tokens, 837 and 786 for the last 2,089 of 16,712, 2,721 and 2,362 for
    the last 3,649 of 29,192, 1,028 and 971 for a prompt of 8,192.
    """
    if head_dim not in KEYS_AT_ONCE:
        return False
    pairs = sum(count * (context - count / 2) for count, context in zip(queries, contexts, strict=True))
    return pairs >= GATHER_FROM * sum(contexts) and rows_of(contexts, KEYS_AT_ONCE[head_dim]) <= MOST_GATHERED


def most_gathered(tokens: int, longest: int, sequences: int) -> int:
    """Rows that a step of so many tokens and sequences may gather, where a sequence has at most `longest`; 0: none does.

    Of all steps one sequence with as many new tokens as there can be reads its keys most often. Pairs are at most
    tokens * longest, and at least GATHER_FROM for each token that is gathered.
    """
    context = min(longest, MOST_GATHERED)
    queries = min(tokens, context)
    if queries * (context - queries / 2) < GATHER_FROM * context:
        return 0
    return min(MOST_GATHERED, -(-longest * tokens // GATHER_FROM) + sequences * _MOST_KEYS_AT_ONCE)


def gathered(rows: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Part, Part]:
    """What rows of keys and of values take of a workspace."""
    part = (dtype, (rows, kv_heads, head_dim))
    return part, part


def gathered_bytes(rows: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    return bytes_for(*gathered(rows, kv_heads, head_dim, dtype))


def rows_of(contexts: tuple[int, ...], multiple: int) -> int:
    """Rows that sequences take which each begin at a multiple of `multiple`."""
    return sum(-(-context // multiple) for context in contexts) * multiple


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for kv_heads, head_dim, page_size, multiple, contexts in (
        (2, 8, 4, 8, (3, 8, 10)),
        (1, 64, 16, 128, (129,)),
        (3, 80, 16, 48, (1, 95, 48)),
    ):
        most = max(-(-context // page_size) for context in contexts)
        pages = make.permutation(most * len(contexts) + 1, dtype=torch.int32)
        cache = make.normal(2, len(pages), page_size, kv_heads, head_dim)
        cache[:, pages[-1]] = 1e6  # a page that is nobody's
        rows = rows_of(contexts, multiple) + page_size
        example = {
            "cache": PagedCache(cache[0], cache[1]),
            "page_table": pages[:-1].view(len(contexts), most).contiguous(),
            "context_lengths": make.tensor(contexts),
            "context_lengths_host": contexts,
            "multiple": multiple,
            "dtype": make.dtype,
            "workspace": Workspace("gathered", gathered_bytes(rows, kv_heads, head_dim, make.dtype), make.device),
        }
        yield example
        yield {**example, "cache": quantised_cache(PagedCache(cache[0], cache[1]))}


@op(examples=_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def gather_pages(
    cache: PagedCache,
    page_table: torch.Tensor,
    context_lengths: torch.Tensor,
    context_lengths_host: tuple[int, ...],
    multiple: int,
    dtype: torch.dtype,
    workspace: Workspace,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values of all sequences, [rows, kv_heads, head_dim] each, and where each sequence begins, [sequences + 1] int32.

    Sequences begin at multiples of `multiple`, and what lies between them is zero: who reads so many rows at a time never
    reads another sequence's. page_table and context_lengths as for attention over pages; `dtype` is the model's. The next to
    use the workspace writes over them.
    """
    _, page_size, kv_heads, head_dim = cache.keys.shape
    starts = torch.zeros(len(context_lengths) + 1, dtype=torch.int32, device=cache.keys.device)
    starts[1:] = ((context_lengths + multiple - 1) // multiple * multiple).cumsum(0)
    rows = rows_of(context_lengths_host, multiple)
    keys, values = (taken.zero_() for taken in workspace.take(*gathered(rows, kv_heads, head_dim, dtype)))
    start = 0
    for sequence, context in enumerate(context_lengths_host):
        pages = page_table[sequence, : -(-context // page_size)].long()
        for found, target in zip(cache.read(pages, dtype), (keys, values), strict=True):
            target[start : start + context] = found[:context]
        start += rows_of((context,), multiple)
    return keys, values, starts


def _copy_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for layers, pages, page in ((1, 3, (1, 1, 2)), (3, 9, (16, 2, 72)), (2, 40, (64, 8, 128)), (2, 7, (16, 4))):
        order = make.permutation(pages)
        count = min(5, pages // 2)
        caches = [make.normal(pages, *page) for _ in range(2 * layers)]
        yield {"caches": caches, "sources": order[:count].clone(), "targets": order[-count:].clone()}


@op(examples=_copy_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def copy_pages(caches: Sequence[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Pages `sources` [n] int64 go to `targets` [n], in each of the caches, [pages, page_size, kv_heads, head_dim]; no page is
    both."""
    for cache in caches:
        as_bytes = cache.view(torch.uint8)  # torch copies no 8-bit floats by index
        as_bytes.index_copy_(0, targets, as_bytes.index_select(0, sources))
