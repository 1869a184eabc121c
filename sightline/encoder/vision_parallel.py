"""The tower over several ranks: each of which runs some frames, or all of which run a part of each (parallel/costs.py).

Every rank is told of every item, makes the patches of those frames that it runs, and in the end has the embeddings of all, for
its arena.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sightline.encoder.patch_maker import PatchMaker, Pixels
from sightline.models.tower import Tower
from sightline.parallel.costs import Assignment, LinkCosts, TowerCosts, VisionParallel, assign
from sightline.parallel.group import Group
from sightline.timing import StageClock
from sightline.types import Grid, MediaItem

RunTower = Callable[[Sequence[torch.Tensor], Sequence[Grid]], torch.Tensor]  # patches and grids to rows


@dataclass(frozen=True)
class SharedWork:
    """Frames of some items, one after another, and who runs which."""

    grids: tuple[Grid, ...]  # of each frame, (1, height, width)
    patches: tuple[torch.Tensor | None, ...]  # of each; None: this rank does not run it
    assignment: Assignment


class VisionRanks:
    def __init__(self, group: Group, mode: VisionParallel, tower: Tower, costs: TowerCosts, link: LinkCosts) -> None:
        self.group, self._mode, self._tower = group, mode, tower
        self._costs, self._link = costs, link

    def prepare(
        self, items: Sequence[MediaItem], pixels: Sequence[Pixels | None], maker: PatchMaker, clock: StageClock
    ) -> SharedWork:
        """Patches of the frames that this rank has to run, alone or with the others."""
        grids = [frames_of(item.grids) for item in items]
        found = self.assign([_size(grid) for frames in grids for grid in frames], maker.itemsize)
        wanted = [owner in (-1, self.group.rank) for owner in found.ranks]
        counts = [len(frames) for frames in grids]
        first = [sum(counts[:item]) for item in range(len(items))]
        each = [wanted[start : start + count] for start, count in zip(first, counts, strict=True)]
        made = maker.make_frames(items, pixels, each, clock)
        return SharedWork(
            tuple(grid for frames in grids for grid in frames), tuple(frame for frames in made for frame in frames), found
        )

    def share(self, views: Sequence[torch.Tensor], grids: Sequence[Grid]) -> SharedWork:
        """The same of patches that every rank has all of."""
        frames = frames_of(grids)
        parts = [
            part for patches, (_, height, width) in zip(views, grids, strict=True) for part in patches.split(height * width)
        ]
        found = self.assign([_size(grid) for grid in frames], views[0].element_size())
        return SharedWork(frames, tuple(parts), found)

    def encode(self, work: SharedWork, run: RunTower, run_together: RunTower) -> torch.Tensor:
        """Rows of all frames, one after another, on every rank. `run_together` runs a part of each on every rank."""
        rows: list[torch.Tensor | None] = [None] * len(work.grids)
        for owners, made in (self._run_own(work, run), self._run_together(work, run_together)):
            for index, part in zip(owners, made, strict=True):
                rows[index] = part
        return torch.cat([part for part in rows if part is not None])

    def assign(self, frames: Sequence[int], itemsize: int) -> Assignment:
        """`frames`: patches of each."""
        return assign(frames, self._mode, self.group.size, self._costs, itemsize, self._link)

    def _run_own(self, work: SharedWork, run: RunTower) -> tuple[list[int], tuple[torch.Tensor, ...]]:
        """Frames that one rank runs, and their rows."""
        by_rank = [work.assignment.of_rank(rank) for rank in range(self.group.size)]
        order = [index for owned in by_rank for index in owned]
        if not order:
            return [], ()
        counts = [sum(self._tower.num_rows(work.grids[index]) for index in owned) for owned in by_rank]
        own = by_rank[self.group.rank]
        made = self._run(work, own, run) if own else self._no_rows()
        spans = tuple((sum(counts[:rank]), count) for rank, count in enumerate(counts))
        rows = self.group.all_gather(made, spans, dim=0)
        return order, rows.split([self._tower.num_rows(work.grids[index]) for index in order])

    def _run_together(self, work: SharedWork, run: RunTower) -> tuple[list[int], tuple[torch.Tensor, ...]]:
        """Frames that all ranks run together, and their rows."""
        order = work.assignment.of_rank(-1)
        if not order:
            return [], ()
        rows = self._run(work, order, run)
        return order, rows.split([self._tower.num_rows(work.grids[index]) for index in order])

    @staticmethod
    def _run(work: SharedWork, indices: Sequence[int], run: RunTower) -> torch.Tensor:
        patches = [part for index in indices if (part := work.patches[index]) is not None]
        assert len(patches) == len(indices), "a frame that this rank runs has no patches"
        return run(patches, [work.grids[index] for index in indices])

    def _no_rows(self) -> torch.Tensor:
        weight = next(self._tower.parameters())
        return torch.empty((0, self._tower.embedding_width), dtype=weight.dtype, device=weight.device)


def frames_of(grids: Sequence[Grid]) -> tuple[Grid, ...]:
    return tuple((1, height, width) for count, height, width in grids for _ in range(count))


def _size(grid: Grid) -> int:
    return grid[1] * grid[2]
