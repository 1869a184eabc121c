"""What a tower's work and what ranks send each other take, modelled; and who then runs what.

`data`      each image, and each frame of a video, is run by one rank: nothing is sent but the embeddings
`sequence`  all ranks run a part of the patches of each (Ulysses): attention sees all patches and some heads, so patches and
            heads change places twice a block: 4 · hidden numbers a patch, of which a rank keeps 1 / ranks
`tensor`    all ranks run a part of each matrix: two sums over ranks a block, 2 · hidden numbers a patch, sent twice
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sightline.parallel.split import spans
from sightline.spec import PatchTowerSpec

Scheme = Literal["data", "sequence", "tensor"]
VisionParallel = Literal["auto", Scheme]  # `--vision-parallel`


@dataclass(frozen=True)
class LinkCosts:
    """Measured once at the start (worker/measure_link.py); the same numbers on all ranks."""

    flops: float  # a second, of the tower's matrices
    bytes_per_s: float  # that a rank sends
    latency_s: float  # of one exchange


@dataclass(frozen=True)
class TowerCosts:
    """Of a tower in numbers."""

    depth: int
    hidden: int
    heads: int
    linear_flops: int  # of a patch, in all blocks
    attention_flops: int  # of a patch and a patch that it sees, in all blocks

    @classmethod
    def of(cls, spec: PatchTowerSpec) -> "TowerCosts":
        block = spec.block
        matrices = 4 * block.hidden_size**2 + block.mlp_matrices * block.hidden_size * block.intermediate_size
        return cls(
            depth=spec.depth,
            hidden=block.hidden_size,
            heads=block.num_heads,
            linear_flops=2 * matrices * spec.depth,
            attention_flops=4 * block.hidden_size * spec.depth,
        )

    def flops(self, patches: int) -> int:
        """Of one frame. Windows make it less, by the same share for all."""
        return patches * (self.linear_flops + self.attention_flops * patches)

    def sent_bytes(self, scheme: Scheme, patches: int, ranks: int, itemsize: int) -> float:
        """By one rank, on average over ranks, inside the blocks."""
        if scheme == "data" or ranks == 1:
            return 0.0
        numbers = patches * self.hidden * self.depth
        if scheme == "sequence":
            return 4 * numbers / ranks * (ranks - 1) / ranks * itemsize
        return 2 * 2 * numbers * (ranks - 1) / ranks * itemsize  # a ring sends each sum twice: to add up, and to tell

    def seconds(self, scheme: Scheme, patches: int, ranks: int, itemsize: int, link: LinkCosts) -> float:
        """Of one frame."""
        if scheme == "data" or ranks == 1:
            return self.flops(patches) / link.flops
        heads = max(count for _, count in spans(self.heads, ranks)) / self.heads
        part = max(count for _, count in spans(patches, ranks)) / patches
        linear = self.linear_flops * patches * (part if scheme == "sequence" else heads)
        attention = self.attention_flops * patches**2 * heads
        sent = self.sent_bytes(scheme, patches, ranks, itemsize) / link.bytes_per_s
        return (linear + attention) / link.flops + sent + 2 * self.depth * link.latency_s


@dataclass(frozen=True)
class Assignment:
    """Of frames, by their index: which rank runs each; -1: all ranks together, in `sequence`."""

    ranks: tuple[int, ...]
    seconds: float  # modelled

    def of_rank(self, rank: int) -> list[int]:
        return [index for index, owner in enumerate(self.ranks) if owner == rank]


def assign(
    frames: Sequence[int], mode: VisionParallel, ranks: int, costs: TowerCosts, itemsize: int, link: LinkCosts
) -> Assignment:
    """`frames`: patches of each. For `auto`, the largest go to all ranks together as long as that makes the whole faster."""
    by_size = sorted(range(len(frames)), key=lambda index: (-frames[index], index))
    together = {"data": [0], "sequence": [len(frames)]}.get(mode, range(len(frames) + 1))
    best: Assignment | None = None
    for count in together:
        owners = [-1] * len(frames)
        loads = [0.0] * ranks
        for index in by_size[count:]:  # the largest first, each to the rank that has least
            rank = loads.index(min(loads))
            owners[index] = rank
            loads[rank] += costs.seconds("data", frames[index], ranks, itemsize, link)
        shared = sum(costs.seconds("sequence", frames[index], ranks, itemsize, link) for index in by_size[:count])
        found = Assignment(tuple(owners), shared + max(loads))
        if best is None or found.seconds < best.seconds:
            best = found
    assert best is not None
    return best
