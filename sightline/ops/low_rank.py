"""What adapters add to a product: a low-rank pair for each, of which a token uses one or none."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import ExampleMaker, Tolerance, op

CUBLAS = "cublas"


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, size, out, ranks in ((1, 24, 40, 8), (33, 128, 72, 24), (300, 64, 96, 16)):
        gates = make.integers(0, 3, tokens, 1).to(make.dtype).repeat(1, ranks)
        gates[:, : ranks // 2] = 0  # an adapter that nobody uses
        yield {
            "out": make.normal(tokens, out),
            "x": make.normal(tokens, size),
            "down": make.normal(ranks, size) * size**-0.5,
            "up": make.normal(out, ranks) * ranks**-0.5,
            "gates": gates,
        }


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(4e-2, 3e-2)})
def add_low_rank(out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """out + ((x down^T) * gates) up^T, in place.

    out [tokens, out], x [tokens, size], down [ranks, size], up [out, ranks], gates [tokens, ranks]: the scale of the adapter
    that a token uses in the columns of its rank, 0 in those of others.
    """
    return out.add_(F.linear(F.linear(x, down) * gates, up))


def _adds_in_place(out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, gates: torch.Tensor) -> bool:
    return out.is_cuda and out.is_contiguous()


@add_low_rank.kernel(CUBLAS, when=_adds_in_place, graph_safe=True)
def add_low_rank_cublas(
    out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """The second product is added to what is there, and rounded once."""
    return out.addmm_(F.linear(x, down).mul_(gates), up.T)
