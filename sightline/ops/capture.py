"""Capture of CUDA graphs: the launches of a function, replayed later on the same addresses."""

from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]


class Capture(Protocol):
    def __call__(
        self, run: Callable[[], torch.Tensor], first: Callable[[], object] | None = None, /
    ) -> tuple[Replay, torch.Tensor]:
        """How to run it again, and where its result is. Before, `first` compiles what `run` needs; without it, `run` does."""
        ...


def capture_cuda_graphs(device: torch.device) -> Capture:
    """Captures into a pool that all graphs of this capture share. What is compiled at first use is compiled before.

    Both happen on one stream of its own: torch and cuBLAS keep memory for each stream that was ever used, and graphs remember
    where cuBLAS had its own. So graphs of two captures may run at the same time, those of one in turn.
    """
    pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def capture(run: Callable[[], torch.Tensor], first: Callable[[], object] | None = None, /) -> tuple[Replay, torch.Tensor]:
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            (first or run)()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Threads that decode images may allocate meanwhile: that is no fault of the capture.
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            out = run()
        return graph.replay, out

    return capture
