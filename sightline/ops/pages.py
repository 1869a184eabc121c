"""Keys and values out of their pages, in a row: attention reads them faster so, where many queries read each of them."""

from collections.abc import Iterator
from typing import Any

import torch

from sightline.ops.dispatch import EXACT, ExampleMaker, op

GATHER_FROM = 1536  # queries that read a key, on average over all keys
MOST_GATHERED = 2**18  # rows: the memory plan has room for so many
MOST_KEYS_AT_ONCE = 128  # that a kernel reads: the largest number that sequences begin at multiples of


def is_worth_gathering(queries: tuple[int, ...], contexts: tuple[int, ...], multiple: int) -> bool:
    """Keys in a row come through the chip's copy engine, keys in pages token by token; but gathering copies each key once.

    On an H200, microseconds over pages, and gathered with the gathering: 80 and 92 for a prompt of 2,089 tokens, 837 and 786
    for the last 2,089 of 16,712, 2,721 and 2,362 for the last 3,649 of 29,192, 1,028 and 971 for a prompt of 8,192.
    """
    pairs = sum(count * (context - count / 2) for count, context in zip(queries, contexts, strict=True))
    return pairs >= GATHER_FROM * sum(contexts) and rows_of(contexts, multiple) <= MOST_GATHERED


def most_gathered(tokens: int, longest: int, sequences: int) -> int:
    """Rows that a step of so many tokens and sequences may gather, where a sequence has at most `longest`.

    Pairs are at most tokens * longest, and at least GATHER_FROM for each token that is gathered.
    """
    return min(MOST_GATHERED, -(-longest * tokens // GATHER_FROM) + sequences * MOST_KEYS_AT_ONCE)


class GatheringRoom:
    """Memory for the keys and values that steps gather, each in its turn: taken once, enough for the largest.

    An allocator needs a larger block for each longer context and keeps those before: a prompt of 230,000 tokens left 5 GB.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None  # not where nobody gathers

    @property
    def taken_bytes(self) -> int:
        return sum(one.nbytes for one in self._kept or ())

    def take(self, rows: int, k_cache: torch.Tensor, v_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For rows of these caches; what was in it before may be in it still."""
        assert rows <= self._rows, f"{rows} rows are gathered, more than the {self._rows} there is room for"
        if self._kept is None:
            self._kept = k_cache.new_empty(self._rows, *k_cache.shape[2:]), v_cache.new_empty(self._rows, *v_cache.shape[2:])
        keys, values = self._kept
        return keys[:rows], values[:rows]


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
            "room": GatheringRoom(rows_of(contexts, multiple) + page_size),
        }


@op(examples=_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def gather_pages(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    context_lengths: torch.Tensor,
    context_lengths_host: tuple[int, ...],
    multiple: int,
    room: GatheringRoom,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values of all sequences, [rows, kv_heads, head_dim] each, and where each sequence begins, [sequences + 1] int32.

    Sequences begin at multiples of `multiple`, and what lies between them is zero: who reads so many rows at a time never
    reads another sequence's. Caches, page_table and context_lengths as for attention over pages. The next to use `room` writes
    over them.
    """
    page_size = k_cache.shape[1]
    starts = torch.zeros(len(context_lengths) + 1, dtype=torch.int32, device=k_cache.device)
    starts[1:] = ((context_lengths + multiple - 1) // multiple * multiple).cumsum(0)
    rows = rows_of(context_lengths_host, multiple)
    keys, values = (taken.zero_() for taken in room.take(rows, k_cache, v_cache))
    start = 0
    for sequence, context in enumerate(context_lengths_host):
        pages = page_table[sequence, : -(-context // page_size)].long()
        for cache, gathered in ((k_cache, keys), (v_cache, values)):
            gathered[start : start + context] = cache[pages].flatten(0, 1)[:context]
        start += rows_of((context,), multiple)
    return keys, values, starts
