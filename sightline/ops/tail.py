"""Attention whose last tiles do not fill the chip: their queries attend to parts of the keys, side by side, and are joined.

queries    | body: tiles that fill the chip some times over | tail |
keys                            all                           part 0 | part 1 | …     each with the log of its weights' sum
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sightline.ops.dispatch import EXACT, ExampleMaker, Tolerance, op

_WORTHWHILE = 3072  # tokens from which on a wave of tiles lasts longer than the launches that splitting one takes
_MULTIPLE = 16  # of so many keys is a part
MOST_PARTS = 15


@dataclass(frozen=True)
class Tail:
    body: int  # queries before it
    parts: int
    size: int  # keys of a part; the last may have fewer


def split_tail(tokens: int, heads: int, tile: int, multiprocessors: int) -> Tail | None:
    """How to split the last wave of tiles of `tile` queries, if it is worth it: they must leave half of the chip idle."""
    tiles = -(-tokens // tile)
    waves, over = divmod(tiles * heads, multiprocessors)
    if not waves or not over or tokens < _WORTHWHILE:
        return None
    body = waves * multiprocessors // heads
    wanted = min(MOST_PARTS, multiprocessors // ((tiles - body) * heads))
    if wanted < 2:
        return None
    size = -(-tokens // (wanted * _MULTIPLE)) * _MULTIPLE
    return Tail(body * tile, -(-tokens // size), size)


def _queries_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, count, body, parts, size in ((70, 70, 60, 4, 16), (70, 50, 60, 4, 16), (40, 39, 38, 1, 48), (90, 83, 5, 7, 16)):
        q = make.normal(tokens, 3, 2, 24)[:, 0]
        yield {"q": q, "segment_starts": make.tensor((0, count)), "body": body, "parts": parts, "size": size}


@op(examples=_queries_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def repeat_tail(
    q: torch.Tensor, segment_starts: torch.Tensor, body: int, parts: int, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The queries after the first `body`, once for each part of the keys, and where the segments of both attentions start.

    q [tokens, heads, head_dim], possibly a strided view; segment_starts [2] int32: one segment of at most as many tokens.
    Returns queries [parts * rows, heads, head_dim], and as int32 the starts of the body's queries [2], of the repeated queries
    [parts + 1] and of the parts of at most `size` keys [parts + 1]. Of the repeated queries those behind the segment's end
    are there too: what they attend to is for nobody.
    """
    rows = len(q) - body
    part = torch.arange(parts + 1, dtype=torch.int32, device=q.device)
    queries = q[body:].expand(parts, -1, -1, -1).flatten(0, 1)
    return queries, segment_starts.clamp(max=body), part * rows, torch.minimum(part * size, segment_starts[1:])


def _join_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for parts, rows, heads, size in ((1, 3, 2, 8), (4, 5, 2, 80), (7, 33, 3, 72)):
        weights = make.normal(heads, parts * rows, dtype=torch.float32)
        weights[:, :rows] += 3
        if parts > 1:
            weights[:, -rows:] = float("-inf")  # a part without keys
        attended = make.normal(parts * rows, heads, size)
        yield {"attended": attended, "log_sums": weights, "parts": parts, "out": torch.zeros_like(attended[:rows])}


@op(examples=_join_examples, tolerances={torch.float32: Tolerance(1e-6, 1e-5), torch.bfloat16: Tolerance(8e-3, 8e-3)})
def join_parts(attended: torch.Tensor, log_sums: torch.Tensor, parts: int, out: torch.Tensor) -> None:
    """Fills out [rows, heads, size] with what attention over all keys gives.

    attended [parts * rows, heads, size] over parts of the keys; log_sums [heads, parts * rows]: logarithms of sums of weights.
    """
    rows = attended.unflatten(0, (parts, -1)).float()
    shares = log_sums.unflatten(1, (parts, -1)).softmax(dim=1)
    out.copy_(torch.einsum("prhd,hpr->rhd", rows, shares))
