"""Scores of tokens that may not come. A set of tokens is a row of bits: bit b of word w is token 32 * w + b."""

from collections.abc import Iterator
from typing import Any

import torch

from sightline.ops.dispatch import EXACT, ExampleMaker, op


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for n, vocab, indices in ((1, 32, [0]), (5, 1000, [0, 2, 4]), (3, 2049, [2, 0]), (2, 151_936, [1])):
        words = -(-vocab // 32)
        bits = make.integers(-(2**31), 2**31, len(indices), words, dtype=torch.int32)
        yield {"scores": make.normal(n, vocab), "allowed": bits, "rows": make.tensor(indices, torch.int64)}


@op(examples=_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def forbid_tokens(scores: torch.Tensor, allowed: torch.Tensor, rows: torch.Tensor) -> None:
    """scores[rows[i], t] becomes -inf where bit t of allowed[i] is 0, in place.

    scores [n, vocab], allowed [m, ceil(vocab / 32)] int32, rows [m] int64, each once.
    """
    indices = torch.arange(8, dtype=torch.uint8, device=scores.device)
    bits = (allowed.view(torch.uint8).unsqueeze(-1) >> indices) & 1  # [m, bytes, 8]; words are little-endian
    clear = bits.flatten(1)[:, : scores.shape[1]] == 0
    scores.index_copy_(0, rows, scores.index_select(0, rows).masked_fill_(clear, -torch.inf))
