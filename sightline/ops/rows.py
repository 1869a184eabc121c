"""Vision rows in the language model's hidden state. index[t] names the row that token t takes, -1 means a text token."""

from collections.abc import Iterator
from typing import Any

import torch

from sightline.ops.dispatch import EXACT, ExampleMaker, Tolerance, op


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, rows, size, columns in ((5, 3, 8, 8), (40, 16, 256, 1024)):
        yield {
            "hidden": make.normal(tokens, size),
            "rows": make.normal(rows, columns)[:, columns - size :],
            "index": make.integers(-1, rows, tokens, dtype=torch.int64),
        }
    yield {"hidden": make.normal(4, 8), "rows": make.normal(2, 8), "index": make.tensor([-1] * 4, torch.int64)}


@op(examples=_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def place_rows(hidden: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Token t becomes rows[index[t]] where index[t] >= 0 and stays hidden[t] elsewhere.

    hidden [tokens, size], rows [n, size] possibly a strided view, index [tokens] int64.
    """
    return torch.where((index >= 0)[:, None], rows[index.clamp(min=0)], hidden)


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-6, 1e-6), torch.bfloat16: Tolerance(0.0, 8e-3)})
def add_rows(hidden: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """hidden[t] + rows[index[t]] where index[t] >= 0, hidden[t] elsewhere. Arguments as for place_rows."""
    return torch.where((index >= 0)[:, None], hidden + rows[index.clamp(min=0)], hidden)
