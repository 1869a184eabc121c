"""CUDA graphs without CUDA: a captured function runs again on the same buffers, a graph's dangers but for the device's."""

from collections.abc import Callable

import torch


def run_again(
    run: Callable[[], torch.Tensor], first: Callable[[], object] | None = None, /
) -> tuple[Callable[[], None], torch.Tensor]:
    """A captured function for the CPU: its result is always at the same place."""
    if first is not None:
        first()
    out = run()

    def replay() -> None:
        out.copy_(run())

    return replay, out
