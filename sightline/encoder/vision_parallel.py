"""The tower over several ranks: each of which runs some frames, or all of which run a part of each (parallel/costs.py).

Every rank is told of every item, and in the end has the embeddings of all, for its arena.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from sightline.models.tower import Tower
from sightline.parallel.costs import Assignment, LinkCosts, TowerCosts, VisionParallel, assign
from sightline.parallel.group import Group
from sightline.types import Grid

RunTower = Callable[[Sequence[torch.Tensor], Sequence[Grid]], torch.Tensor]  # patches and grids to rows


class VisionRanks:
    def __init__(self, group: Group, mode: VisionParallel, tower: Tower, costs: TowerCosts, link: LinkCosts) -> None:
        self.group, self._mode, self._tower = group, mode, tower
        self._costs, self._link = costs, link

    def encode(
        self, views: Sequence[torch.Tensor], grids: Sequence[Grid], run: RunTower, run_together: RunTower
    ) -> torch.Tensor:
        """Rows of all views, one after another, on every rank. `run_together` runs a part of each on every rank."""
        frames = list(_frames(views, grids))
        found = self.assign([len(patches) for patches, _ in frames], views[0].element_size())
        rows: list[torch.Tensor | None] = [None] * len(frames)
        for owners, made in (self._run_own(frames, found, run), self._run_together(frames, found, run_together)):
            for index, part in zip(owners, made, strict=True):
                rows[index] = part
        return torch.cat([part for part in rows if part is not None])

    def assign(self, frames: Sequence[int], itemsize: int) -> Assignment:
        """`frames`: patches of each."""
        return assign(frames, self._mode, self.group.size, self._costs, itemsize, self._link)

    def _run_own(self, frames: "list[Frame]", found: Assignment, run: RunTower) -> tuple[list[int], tuple[torch.Tensor, ...]]:
        """Frames that one rank runs, and their rows."""
        by_rank = [found.of_rank(rank) for rank in range(self.group.size)]
        order = [index for owned in by_rank for index in owned]
        if not order:
            return [], ()
        own = [frames[index] for index in by_rank[self.group.rank]]
        counts = [sum(self._num_rows(frames[index]) for index in owned) for owned in by_rank]
        made = run([patches for patches, _ in own], [grid for _, grid in own]) if own else self._no_rows(frames[0][0])
        spans = tuple((sum(counts[:rank]), count) for rank, count in enumerate(counts))
        rows = self.group.all_gather(made, spans, dim=0)
        return order, rows.split([self._num_rows(frames[index]) for index in order])

    def _run_together(
        self, frames: "list[Frame]", found: Assignment, run: RunTower
    ) -> tuple[list[int], tuple[torch.Tensor, ...]]:
        """Frames that all ranks run together, and their rows."""
        order = found.of_rank(-1)
        if not order:
            return [], ()
        rows = run([frames[index][0] for index in order], [frames[index][1] for index in order])
        return order, rows.split([self._num_rows(frames[index]) for index in order])

    def _num_rows(self, frame: "Frame") -> int:
        return self._tower.num_rows(frame[1])

    def _no_rows(self, like: torch.Tensor) -> torch.Tensor:
        weight = next(self._tower.parameters())
        return torch.empty((0, self._tower.embedding_width), dtype=weight.dtype, device=like.device)


Frame = tuple[torch.Tensor, Grid]


def _frames(views: Sequence[torch.Tensor], grids: Sequence[Grid]) -> Iterator[Frame]:
    for patches, (count, height, width) in zip(views, grids, strict=True):
        for frame in patches.split(height * width):
            yield frame, (1, height, width)
        assert len(patches) == count * height * width
