"""The language model's first hidden state: rows of the embedding table, and rows of encoded images in their places."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import EXACT, ExampleMaker, op


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, vocab, rows, size, columns in ((5, 7, 3, 8, 8), (40, 50, 16, 256, 1024), (3, 9, 4, 1100, 2200)):
        index = make.integers(-1, rows, tokens, dtype=torch.int64)
        ids = make.integers(0, vocab, tokens, dtype=torch.int64)
        yield {
            "token_ids": torch.where(index < 0, ids, ids + 10**9),  # what stands in an image's place is not looked up
            "table": make.normal(vocab, size),
            "vision_embeddings": make.normal(rows, columns),
            "embedding_index": index,
        }
    text = {"token_ids": make.integers(0, 6, 4, dtype=torch.int64), "table": make.normal(6, 72)}
    yield {**text, "vision_embeddings": None, "embedding_index": None}
    yield {**text, "vision_embeddings": make.normal(2, 72), "embedding_index": make.tensor([-1] * 4, torch.int64)}


@op(examples=_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def merge_embeddings(
    token_ids: torch.Tensor, table: torch.Tensor, vision_embeddings: torch.Tensor | None, embedding_index: torch.Tensor | None
) -> torch.Tensor:
    """Token t is the start of vision_embeddings[embedding_index[t]] where that is >= 0, else table[token_ids[t]].

    Returns [tokens, size].

    token_ids [tokens] int64, any number where a vision row goes; table [vocab, size]; vision_embeddings [rows, size or more];
    embedding_index [tokens] int64, -1 for text. The last two are both None if all is text.
    """
    if vision_embeddings is None or embedding_index is None:
        return F.embedding(token_ids, table)
    is_vision = embedding_index >= 0
    text = F.embedding(token_ids.masked_fill(is_vision, 0), table)
    return torch.where(is_vision[:, None], vision_embeddings[embedding_index.clamp(min=0), : table.shape[1]], text)
