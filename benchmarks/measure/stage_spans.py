"""Which stage the device is in, from inside the real forward pass: marks at modules and ops, no wait between them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from sightline.ops.dispatch import Op
from sightline.worker.device_timer import DeviceTimer


@dataclass
class _Span:
    stage: str
    timer: DeviceTimer
    inside: list["_Span"] = field(default_factory=list)


class Spans:
    """Stages may lie inside one another; what passes in the inner one is not counted for the outer one.

    On a GPU a mark is an event in its queue, so a stage lasts from when the device is done with what came before until it is
    done with the stage: waits for a late host included, nothing counted twice.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: list[_Span] = []
        self._all: list[_Span] = []

    def begin(self, stage: str) -> None:
        span = _Span(stage, DeviceTimer(self._device))
        if self._open:
            self._open[-1].inside.append(span)
        self._open.append(span)
        self._all.append(span)
        span.timer.__enter__()

    def end(self) -> None:
        self._open.pop().timer.__exit__(None, None, None)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    @contextlib.contextmanager
    def module(self, module: nn.Module, stage: str) -> Iterator[None]:
        """While inside, calls of the module are a stage."""
        before = module.register_forward_pre_hook(lambda *_: self.begin(stage))
        after = module.register_forward_hook(lambda *_: self.end())
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @contextlib.contextmanager
    def op(self, op: Op[..., Any], stage: str) -> Iterator[None]:
        """While inside, runs of the op are a stage, be it its definition or a kernel."""

        def marked(run: Callable[..., Any]) -> Callable[..., Any]:
            def inside(*args: Any, **kwargs: Any) -> Any:
                with self.stage(stage):
                    return run(*args, **kwargs)

            return inside

        reference, kernels = op.reference, op.kernels
        op.reference = replace(reference, run=marked(reference.run))
        op.kernels = [replace(kernel, run=marked(kernel.run)) for kernel in kernels]
        try:
            yield
        finally:
            op.reference, op.kernels = reference, kernels

    def milliseconds(self) -> dict[str, float]:
        """By stage, after something has waited for the device."""
        assert not self._open, f"{self._open[-1].stage} has no end"
        found: dict[str, float] = {}
        for span in self._all:
            own = span.timer.seconds - sum(inner.timer.seconds for inner in span.inside)
            found[span.stage] = found.get(span.stage, 0.0) + 1000 * own
        return found
