"""Keys and values out of their pages, in a row: attention reads them faster so, where many queries read each of them."""

from collections.abc import Iterator
from typing import Any

import torch

from sightline.ops.dispatch import EXACT, ExampleMaker, op


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
        yield {
            "k_cache": cache[0],
            "v_cache": cache[1],
            "page_table": pages[:-1].view(len(contexts), most).contiguous(),
            "context_lengths": make.tensor(contexts),
            "context_lengths_host": contexts,
            "multiple": multiple,
        }


@op(examples=_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def gather_pages(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    context_lengths: torch.Tensor,
    context_lengths_host: tuple[int, ...],
    multiple: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values of all sequences, [rows, kv_heads, head_dim] each, and where each sequence begins, [sequences + 1] int32.

    Sequences begin at multiples of `multiple`, and what lies between them is zero: who reads so many rows at a time never
    reads another sequence's. Caches, page_table and context_lengths as for attention over pages.
    """
    page_size, *row = k_cache.shape[1:]
    starts = torch.zeros(len(context_lengths) + 1, dtype=torch.int32, device=k_cache.device)
    starts[1:] = ((context_lengths + multiple - 1) // multiple * multiple).cumsum(0)
    rows = rows_of(context_lengths_host, multiple)
    keys, values = k_cache.new_zeros(rows, *row), v_cache.new_zeros(rows, *row)
    start = 0
    for sequence, context in enumerate(context_lengths_host):
        pages = page_table[sequence, : -(-context // page_size)].long()
        for cache, gathered in ((k_cache, keys), (v_cache, values)):
            gathered[start : start + context] = cache[pages].flatten(0, 1)[:context]
        start += rows_of((context,), multiple)
    return keys, values, starts
