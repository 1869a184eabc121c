"""Sequence parallelism as Ulysses does it: a rank has some patches of all heads, and for attention all patches of some heads.

                heads                          heads
              0 1 2 3                        0 1 2 3
patches  0    a a a a     all-to-all    0    a a b b
         1    a a a a    ───────────►   1    a a b b       rank a, rank b
         2    b b b b    ◄───────────   2    a a b b
         3    b b b b                   3    a a b b
"""

import torch

from sightline.parallel.group import Group
from sightline.parallel.split import Span, spans


class SequenceSplit:
    """Of one batch of patches. Patches that become one row stay together."""

    def __init__(self, group: Group, patches: int, unit: int, heads: int) -> None:
        """`unit`: patches of a row."""
        self.group = group
        self.rows: tuple[Span, ...] = spans(patches // unit, group.size)  # of each rank
        self._patches = [count * unit for _, count in self.rows]
        self._heads = [count for _, count in spans(heads, group.size)]
        first, count = self.rows[group.rank]
        self.own = slice(first * unit, (first + count) * unit)

    def to_heads(self, x: torch.Tensor) -> torch.Tensor:
        """[own patches, n, heads, dim] to [all patches, n, own heads, dim]."""
        own, mine = self._patches[self.group.rank], self._heads[self.group.rank]
        _, n, _, dim = x.shape
        given = torch.cat([part.reshape(-1) for part in x.split(self._heads, 2)])
        found = self.group.all_to_all(
            given, [own * n * heads * dim for heads in self._heads], [patches * n * mine * dim for patches in self._patches]
        )
        return found.view(-1, n, mine, dim) if mine else x.new_empty((sum(self._patches), n, 0, dim))

    def to_patches(self, x: torch.Tensor) -> torch.Tensor:
        """[all patches, own heads, dim] to [own patches, heads, dim]."""
        own, mine = self._patches[self.group.rank], self._heads[self.group.rank]
        dim = x.shape[2]
        take = [own * heads * dim for heads in self._heads]
        found = self.group.all_to_all(x.reshape(-1), [patches * mine * dim for patches in self._patches], take)
        parts = [part.view(own, heads, dim) for part, heads in zip(found.split(take), self._heads, strict=True)]
        return torch.cat(parts, 1)

    def all_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Own rows to all."""
        return self.group.all_gather(rows, self.rows, dim=0)
