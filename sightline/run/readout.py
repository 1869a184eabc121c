"""Results of a launched step on their way to the host, without waiting for the device until somebody reads them."""

import torch

from sightline.run.sampler import Sampled


class Readout:
    """Copies what was sampled to page-locked memory, behind the step that samples it."""

    def __init__(self, sampled: Sampled) -> None:
        found = (sampled.token_ids, sampled.logprobs, sampled.top_ids, sampled.top_logprobs)
        self._device = sampled.token_ids  # kept until they are read: the next step takes tokens from here
        self._copies = [None if x is None else _to_host(x) for x in found]
        self._done = torch.cuda.Event() if self._device.is_cuda else None
        if self._done is not None:
            self._done.record()

    @property
    def ready(self) -> bool:
        """Whether reading would not wait."""
        return self._done is None or self._done.query()

    def read(self) -> Sampled:
        if self._done is not None:
            self._done.synchronize()
        token_ids, logprobs, top_ids, top_logprobs = self._copies
        assert token_ids is not None
        return Sampled(token_ids, logprobs, top_ids, top_logprobs)


def _to_host(x: torch.Tensor) -> torch.Tensor:
    if not x.is_cuda:
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return host.copy_(x, non_blocking=True)
