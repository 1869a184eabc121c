"""Adapters: low-rank pairs beside the matrices of the decoder's layers, each used by the tokens of some requests.

    x W^T + scale * (x A^T) B^T        for tokens whose request uses the adapter; x W^T for all others

The pairs of all adapters of a matrix are stacked along their ranks, so that two products serve every token whichever it uses:

    A   [ranks, size]       rows of adapter 0, rows of adapter 1, …
    B   [out, ranks]        columns in the same order
    gates [tokens, ranks]   the scale of a token's adapter in the columns of its rank, 0 elsewhere

This is made for few adapters: each token is multiplied with the pairs of all. A layer with experts cannot have any.

    placement of W   A                    B
    column           whole                some of the outputs
    row              some of the inputs   whole; what it gives is a part of the same sum as the product with W
"""

from collections.abc import Sequence

import torch
from torch import nn

from sightline.errors import ConfigError
from sightline.models.linear import Linear, StackedLinear
from sightline.spec import AdapterSpec


class AdapterGates:
    """From the adapter of each token to the gates of a step, which all layers read."""

    def __init__(self, adapters: Sequence[AdapterSpec], device: torch.device, dtype: torch.dtype) -> None:
        owners = [index for index, adapter in enumerate(adapters) for _ in range(adapter.rank)]
        self._owners = torch.tensor(owners, dtype=torch.int64, device=device)
        self._scales = torch.tensor([adapters[index].scale for index in owners], dtype=dtype, device=device)

    def of(self, index: torch.Tensor) -> torch.Tensor:
        """[tokens, ranks] from [tokens] int64: which adapter each token uses, -1 for none."""
        return torch.where(index[:, None] == self._owners, self._scales, 0)


def add_pairs(layers: nn.Module, adapters: Sequence[AdapterSpec]) -> None:
    """Every linear map of the layers gets a pair, uninitialised."""
    ranks = sum(adapter.rank for adapter in adapters)
    for name, module in layers.named_modules():
        if isinstance(module, StackedLinear):
            raise ConfigError(f"The model has adapters and experts ('{name}'), and experts cannot have adapters.")
        if isinstance(module, Linear):
            module.add_low_rank_pair(ranks)
