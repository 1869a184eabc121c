"""What a vision tower is to everyone else: patches and their grids in, embedding rows out.

The shared one is models/patch_tower.py. A family may bring another (Family.tower), with a VisionSpec of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sightline.types import Grid


class Tower(nn.Module, ABC):
    """No patch attends to one of another frame or tile, so an item may be cut between them (encoder/split_views.py).

    Of its linear layers (models/linear.py), --quantize-tower puts those whose names begin with `blocks.` into 8-bit floats.
    """

    @property
    @abstractmethod
    def embedding_width(self) -> int:
        """Numbers per embedding row, as its VisionSpec says."""

    @property
    @abstractmethod
    def patch_width(self) -> int:
        """Numbers of the widest patches that it takes."""

    @property
    def learned_embeddings(self) -> torch.Tensor | None:
        """[n, embedding_width]: of no picture, such as a newline. ProcessorSpec.arrange says where they stand; None: none."""
        return None

    @abstractmethod
    def num_rows(self, grid: Grid) -> int:
        """How many rows it makes of a grid of patches."""

    @abstractmethod
    def largest_grids(self, patches: int) -> list[Grid]:
        """Of so many patches together, or a few more, those that take it the most memory: for the memory profile."""

    @abstractmethod
    def make_batch(self, patches: Sequence[torch.Tensor], grids: Sequence[Grid]) -> Any:
        """What `forward` takes. One tensor [patches, features] per grid, on the tower's device, as ops/pixels.py patchify makes
        them: merge x merge blocks side by side, a still's features once or, without compact_patches, repeated in time."""

    def prepare(self) -> None:
        """Makes what follows from the weights; called once after they are loaded."""
        return

    @abstractmethod
    def forward(self, batch: Any) -> torch.Tensor:
        """Embedding rows of all grids, one after another, [rows, embedding_width]."""
