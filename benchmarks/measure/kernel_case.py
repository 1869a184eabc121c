"""A shape at which an op is timed: its arguments, and what it must read, write and compute there.

Sizes are those of a model: patches and rows as requests bring them. Bytes are what must be read and written if nothing in
between leaves the chip.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sightline.spec import ModelSpec, PatchSpec

Arguments = dict[str, Any]


@dataclass(frozen=True)
class KernelCase:
    shape: str
    make: Callable[[], Arguments]
    bytes_moved: float
    operations: float = 0.0
    speed: float = 1.0  # of its arithmetic, in multiples of the rate of bf16


@dataclass(frozen=True)
class Sizes:
    patches: tuple[int, ...]  # of one image
    batches: tuple[tuple[int, int], ...]  # (images, patches of each)
    decode_rows: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    contexts: tuple[int, ...]
    pixels: tuple[tuple[int, int], ...]  # height, width of images to resize and cut

    @property
    def rows(self) -> tuple[int, ...]:
        return (*self.decode_rows, *self.prefill_rows)


FULL = Sizes(
    patches=(1296, 3520, 8160, 14400),
    batches=((4, 1296), (20, 4800), (64, 16)),
    decode_rows=(1, 32, 128),
    prefill_rows=(2048, 8192),
    contexts=(1024, 8192, 32768),
    pixels=((560, 560), (720, 1280), (1080, 1920), (1440, 2560)),
)
SMALL = Sizes(
    patches=(16, 64),
    batches=((2, 16),),
    decode_rows=(1, 4),
    prefill_rows=(32,),
    contexts=(32, 64),
    pixels=((60, 90),),
)


@dataclass(frozen=True)
class Setting:
    """A model, how large its inputs are, and where tensors are made."""

    spec: ModelSpec
    image: PatchSpec
    sizes: Sizes
    device: torch.device
    dtype: torch.dtype

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype or self.dtype, device=self.device)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=dtype, device=self.device)

    def tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)


Maker = Callable[[Setting], Iterator[KernelCase]]


def norm_arguments(at: Setting, rows: int, size: int, *tensors: str, bias: bool = True) -> Arguments:
    made: Arguments = {name: at.normal(rows, size) for name in tensors}
    return {**made, "weight": at.normal(size), **({"bias": at.normal(size)} if bias else {}), "eps": 1e-6}
