"""The embedding arena: rows of encoded images and videos on the device, and a second tier on the host.

Bookkeeping (which rows are whose, what may go) is cache/embeddings.py's; here are the tensors. A row is
`embedding_width` numbers: the merged row, then one per deepstack feature. The decoder gathers straight from the arena, so
rows are never copied to be used.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.ops.transfer import send


class EmbeddingArena:
    def __init__(self, slots: int, embedding_width: int, device: torch.device, dtype: torch.dtype) -> None:
        # Not cleared: no row is read before it is written, and touching it all would cost its size at once.
        self.rows = torch.empty(slots, embedding_width, device=device, dtype=dtype)
        self._host: dict[bytes, torch.Tensor] = {}

    def store(self, slots: NDArray[np.int64], rows: torch.Tensor) -> None:
        """Writes rows to their places."""
        self.rows.index_copy_(0, send(slots, self.rows.device), rows.to(self.rows.dtype))

    def gather(self, slots: NDArray[np.int64]) -> torch.Tensor:
        return self.rows[send(slots, self.rows.device)]

    def save(self, key: bytes, slots: NDArray[np.int64]) -> None:
        """Copies an entry's rows to the host, before their slots are given to another."""
        copy = torch.empty(len(slots), self.rows.shape[1], dtype=self.rows.dtype, pin_memory=self.rows.is_cuda)
        self._host[key] = copy.copy_(self.gather(slots), non_blocking=True)  # ordered with what the device does next

    def restore(self, key: bytes, slots: NDArray[np.int64]) -> bool:
        """Brings rows back from the host. False if they are not there, after a step that failed before it could save them."""
        rows = self._host.get(key)
        if rows is not None:
            self.store(slots, rows.to(self.rows.device, non_blocking=True))
        return rows is not None

    def drop(self, key: bytes) -> None:
        self._host.pop(key, None)

    @property
    def device_bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    @property
    def host_bytes(self) -> int:
        return sum(rows.numel() * rows.element_size() for rows in self._host.values())
