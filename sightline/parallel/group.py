"""What ranks say to each other. NCCL between GPUs; gloo between processes on CPUs, or of one GPU.

All ranks call the same functions in the same order: each of them waits for the others. A rank that dies makes the others raise.
"""

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from sightline.errors import RankLost
from sightline.parallel.board import RankBoard
from sightline.parallel.rank_info import RankInfo
from sightline.parallel.split import Span

_PATIENCE = datetime.timedelta(minutes=30)  # of a collective: a rank that hangs is found sooner, see engine_timeout_s


# One function, which torch 2.13 calls by the first name and older ones by the second.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def has_gpu_of_its_own(device: torch.device, info: RankInfo) -> bool:
    """Two ranks on one GPU are for tests: NCCL refuses them. The first GPU may come without its number."""
    return device.type == "cuda" and torch.cuda.device_count() >= info.size and (device.index or 0) == info.rank


class Group:
    """The ranks that hold a model together. `sent` counts bytes by kind, as a ring or a direct exchange sends them."""

    def __init__(
        self,
        rank: int,
        size: int,
        graph_safe: bool,
        ranks: dist.ProcessGroup | None = None,
        board: RankBoard | None = None,
    ) -> None:
        self.rank, self.size, self._ranks, self._board = rank, size, ranks, board
        self.graph_safe = graph_safe  # whether a CUDA graph may hold what is said
        self.sent: Counter[str] = Counter()

    @classmethod
    def join(cls, info: RankInfo, device: torch.device) -> "Group":
        """Waits until all are there."""
        alone = has_gpu_of_its_own(device, info)
        dist.init_process_group(
            "nccl" if alone else "gloo",
            init_method=Path(info.meeting).as_uri(),
            rank=info.rank,
            world_size=info.size,
            timeout=_PATIENCE,
        )
        board = None if info.board is None else RankBoard(info.board, info.size)
        return cls(info.rank, info.size, graph_safe=alone, board=board)

    def another(self) -> "Group":
        """The same ranks, for what is said on another stream: what two streams say must not meet."""
        return Group(self.rank, self.size, self.graph_safe, dist.new_group(), self._board)

    def all_reduce_(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in the memory of x."""
        with self._said():
            dist.all_reduce(x, group=self._ranks)
        self._count("all_reduce", 2 * (self.size - 1) * x.nbytes // self.size)
        return x

    def all_gather(self, x: torch.Tensor, spans: Sequence[Span], dim: int) -> torch.Tensor:
        """All ranks' parts, joined along `dim`, where rank i has spans[i] of it."""
        most = max(length for _, length in spans)
        own = x.movedim(dim, 0)
        padded = own.new_zeros((most, *own.shape[1:]))
        padded[: len(own)] = own
        found = padded.new_empty((self.size * most, *own.shape[1:]))
        with self._said():
            _all_gather(found, padded, group=self._ranks)
        self._count("all_gather", (self.size - 1) * padded.nbytes)
        parts = [part[:length] for part, (_, length) in zip(found.split(most), spans, strict=True)]
        return torch.cat(parts).movedim(0, dim)

    def all_to_all(self, x: torch.Tensor, give: Sequence[int], take: Sequence[int]) -> torch.Tensor:
        """Rows of x go to ranks, give[i] of them to rank i, in order; returns those that came, take[i] of them from rank i."""
        x = x.contiguous()
        found = x.new_empty((sum(take), *x.shape[1:]))
        with self._said():
            dist.all_to_all_single(found, x, list(take), list(give), group=self._ranks)
        row_bytes = x[:1].nbytes if len(x) else 0
        self._count("all_to_all", (sum(give) - give[self.rank]) * row_bytes)
        return found

    def broadcast_(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """What rank `source` has in x."""
        with self._said():
            dist.broadcast(x, source, group=self._ranks)
        self._count("broadcast", x.nbytes if self.rank == source else 0)
        return x

    def from_first(self, data: bytes, device: torch.device) -> bytes:
        """What rank 0 has; `data` of the others does not count. `device`: of this rank."""
        there = device if dist.get_backend(self._ranks) == "nccl" else torch.device("cpu")
        length = self.broadcast_(torch.tensor([len(data)], device=there))
        said = torch.zeros(int(length), dtype=torch.uint8, device=there)
        if self.rank == 0 and data:
            said.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return bytes(self.broadcast_(said).cpu().numpy())

    def least(self, value: int) -> int:
        """The smallest of all ranks' numbers."""
        found = torch.tensor([value], device="cuda" if dist.get_backend(self._ranks) == "nccl" else "cpu")
        with self._said():
            dist.all_reduce(found, dist.ReduceOp.MIN, group=self._ranks)
        return int(found)

    def leave(self) -> None:
        dist.destroy_process_group()

    @contextmanager
    def _said(self) -> Iterator[None]:
        if self._board is not None:
            self._board.count_call(self.rank)
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # gloo says where it broke, in no class
                raise
            raise RankLost(f"Rank {self.rank} of {self.size} lost another one") from error

    def _count(self, kind: str, nbytes: int) -> None:
        self.sent[kind] += nbytes
