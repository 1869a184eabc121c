"""Results of a launched step on their way to the host, without waiting for the device until somebody reads them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.worker.sampler import Sampled

Read = tuple[NDArray[np.int64] | None, NDArray[Any] | None, NDArray[Any] | None, NDArray[Any] | None]


class Readout:
    """Copies what was sampled, if anything, to page-locked memory, behind the step that samples it."""

    def __init__(self, sampled: Sampled | None, device: torch.device) -> None:
        found: tuple[torch.Tensor | None, ...] = (None,) * 4
        if sampled is not None:
            found = (sampled.token_ids, sampled.logprobs, sampled.top_ids, sampled.top_logprobs)
        self._copies = [None if x is None else _to_host(x) for x in found]
        self._done = torch.cuda.Event() if device.type == "cuda" else None
        if self._done is not None:
            self._done.record()

    @property
    def ready(self) -> bool:
        """Whether reading would not wait."""
        return self._done is None or self._done.query()

    def read(self) -> Read:
        """Tokens [n], log-probabilities [n], the likeliest [n, k] and theirs [n, k], as far as there are any."""
        if self._done is not None:
            self._done.synchronize()
        tokens, logprobs, top_ids, top_logprobs = (None if x is None else x.numpy() for x in self._copies)
        return tokens, logprobs, top_ids, top_logprobs


def _to_host(x: torch.Tensor) -> torch.Tensor:
    if not x.is_cuda:
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return host.copy_(x, non_blocking=True)
