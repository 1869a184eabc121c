"""Memory that an op works in, made once by whoever runs the op and handed to it: no op keeps memory of its own.

A kernel that splits a sum needs somewhere to put the parts, one that gathers keys somewhere to put them. From the allocator
such memory would come anew in each call, in other sizes; a buffer that a module keeps for itself is in nobody's memory plan,
and streams share it that do not know of each other. So the worker makes workspaces, counts them, and passes them on; without
one (None) kernels that need it are not chosen.
"""

import math

import torch

_ALIGNMENT = 256  # bytes: what any kernel wants, and what torch's allocator gives

Part = tuple[torch.dtype, tuple[int, ...]]  # dtype and shape of a tensor


class Workspace:
    """So many bytes on a device, zero at first. Calls on one stream use it in turn; calls on another need another workspace.

    CUDA graphs remember its address, so it must live as long as they do. An op that needs zeros leaves zeros behind.
    """

    def __init__(self, name: str, size: int, device: torch.device) -> None:
        self.name = name
        self._memory = torch.zeros(size, dtype=torch.uint8, device=device)
        self._parts: tuple[Part, ...] = ()
        self._views: tuple[torch.Tensor, ...] = ()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # zeros for every stream

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def take(self, *parts: Part) -> tuple[torch.Tensor, ...]:
        """Tensors one after another, with what the last call left in them. The next call takes the same memory."""
        if parts != self._parts:  # most ask for the same each time, hundreds of times a step
            needed = bytes_for(*parts)
            assert needed <= self.nbytes, f"{needed} bytes are asked of the workspace {self.name}, which has {self.nbytes}"
            self._parts, self._views = parts, tuple(self._cut(parts))
        return self._views

    def _cut(self, parts: tuple[Part, ...]) -> list[torch.Tensor]:
        views, start = [], 0
        for dtype, shape in parts:
            size = dtype.itemsize * math.prod(shape)
            views.append(self._memory[start : start + size].view(dtype).view(shape))
            start += _aligned(size)
        return views


def bytes_for(*parts: Part) -> int:
    """How large a workspace must be for these together."""
    return sum(_aligned(dtype.itemsize * math.prod(shape)) for dtype, shape in parts)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
