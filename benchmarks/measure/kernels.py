"""What every op costs at the shapes of a model: its definition and each kernel, beside the floor.

Inputs take turns (ops/tuning/timing.py), so that small ones are not found in the cache of the chip more than they would be.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import sightline.ops
from benchmarks.measure.crop_shapes import CROP_SHAPES
from benchmarks.measure.expert_shapes import EXPERT_SHAPES
from benchmarks.measure.kernel_case import KernelCase, Setting
from benchmarks.measure.latent_shapes import LATENT_SHAPES
from benchmarks.measure.recurrent_shapes import RECURRENT_SHAPES
from benchmarks.measure.sampling_shapes import SAMPLING_SHAPES
from benchmarks.measure.stage_floors import Rates
from benchmarks.measure.text_shapes import TEXT_SHAPES
from benchmarks.measure.tower_shapes import TOWER_SHAPES
from sightline.ops.dispatch import OPS, Op
from sightline.ops.kernels import register_kernels
from sightline.ops.tuning.timing import measure_calls

_CHIP_CACHE = 128e6  # bytes of inputs after which none is in the cache any more: over twice the 50 MB of an H200
_MOST_COPIES = 8
OUT_OF_MEMORY = "out of memory"  # a definition may be too large for a device; nothing else may fail
# An op that is not here has no shapes.
SHAPES = {
    **TOWER_SHAPES, **CROP_SHAPES, **TEXT_SHAPES, **RECURRENT_SHAPES, **LATENT_SHAPES, **EXPERT_SHAPES, **SAMPLING_SHAPES,
}  # fmt: skip


@dataclass(frozen=True)
class KernelCost:
    op: str
    shape: str
    implementation: str  # the name of a kernel, or "definition"
    used: bool  # whether this is what the engine runs at this shape
    microseconds: float | None  # None if it failed
    captured: bool  # in a CUDA graph
    floor_microseconds: float
    bytes_moved: float
    operations: float
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.microseconds is None else self.microseconds / self.floor_microseconds

    @property
    def terabytes_per_second(self) -> float | None:
        return None if self.microseconds is None else self.bytes_moved / self.microseconds / 1e6

    @property
    def teraflops(self) -> float | None:
        return None if self.microseconds is None or not self.operations else self.operations / self.microseconds / 1e6


def all_ops() -> dict[str, Op[..., Any]]:
    """Every op of the package, with the kernels that this machine can run."""
    for module in pkgutil.iter_modules(sightline.ops.__path__):
        if not module.ispkg:
            importlib.import_module(f"sightline.ops.{module.name}")
    register_kernels()
    return dict(sorted(OPS.items()))


def measure_ops(at: Setting, ops: Sequence[str], rates: Rates, repeats: int) -> Iterator[KernelCost | str]:
    """The costs, one after another; the name of an op alone if it has no shapes."""
    known = all_ops()
    for name in ops:
        if name not in SHAPES:
            yield name
            continue
        for case in SHAPES[name](at):
            yield from _measure_case(known[name], case, rates, repeats, at.device)
            if at.device.type == "cuda":
                torch.cuda.empty_cache()


@torch.inference_mode()
def _measure_case(op: Op[..., Any], case: KernelCase, rates: Rates, repeats: int, device: torch.device) -> Iterator[KernelCost]:
    copies = 1 if device.type == "cpu" else min(_MOST_COPIES, max(1, round(_CHIP_CACHE / case.bytes_moved)))
    inputs = [case.make() for _ in range(copies)]
    floor = 1e6 * max(case.bytes_moved / rates.bandwidth, case.operations / (case.speed * rates.operations))
    chosen = op.choose(**inputs[0])
    kernels = [kernel for kernel in op.kernels if kernel.when(**inputs[0])]
    for implementation in [op.reference, *kernels]:
        calls = [_bound(implementation.run, one) for one in inputs]
        try:
            timed, error = measure_calls(calls, repeats, device), None
        except RuntimeError as failure:  # one that cannot run must not end the figures of the others
            timed, error = None, OUT_OF_MEMORY if isinstance(failure, torch.OutOfMemoryError) else f"failed: {failure}"[:200]
            torch.cuda.empty_cache()
        yield KernelCost(
            op=op.name,
            shape=case.shape,
            implementation=implementation.name,
            used=implementation is chosen,
            microseconds=timed.microseconds if timed is not None else None,
            captured=timed is not None and timed.captured,
            floor_microseconds=floor,
            bytes_moved=case.bytes_moved,
            operations=case.operations,
            error=error,
        )


def _bound(run: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Any]:
    return lambda: run(**arguments)
