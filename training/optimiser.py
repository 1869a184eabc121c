"""Muon for the matrices inside blocks, AdamW for the rest, on flat buffers, in kernels that can be captured in a graph.

The model runs in bfloat16; its weights and gradients are views of two flat buffers. A float32 copy of the weights takes the
updates and is rounded into them. Matrices of one shape lie side by side, so that Muon turns a whole group at once.

    flat:  | 256x256 … | 640x256 … | … | all else |
             Muon, one group per shape    AdamW
"""

import math
from typing import Any

import torch

_ALIGN = 64  # elements: parameters start at 128 bytes, as matrix kernels like it
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Muon's published coefficients: five steps take singular values to about 1


class Optimiser:
    def __init__(self, named: list[tuple[str, torch.nn.Parameter]], dtype: torch.dtype, decay: float = 0.02) -> None:
        """Parameters become views of a buffer of this dtype; what else a module holds stays as it is."""
        self._decay = decay
        groups: dict[tuple[int, int], list[torch.nn.Parameter]] = {}
        rest = []
        for name, parameter in named:
            if parameter.ndim == 2 and "embed" not in name and "reading" not in name:
                groups.setdefault(_matrix_shape(name, parameter), []).append(parameter)
            else:
                rest.append(parameter)
        device = rest[0].device
        ordered = [parameter for group in groups.values() for parameter in group]
        self._groups: list[tuple[int, int, tuple[int, int]]] = []  # first element, end, shape of a matrix
        at = 0
        for shape, group in groups.items():
            size = sum(parameter.numel() for parameter in group)
            self._groups.append((at, at + size, shape))
            at += size
        self._adam_from = at
        places = []
        for parameter in rest:
            places.append(at)
            at += -(-parameter.numel() // _ALIGN) * _ALIGN
        self.weights = torch.zeros(at, device=device)
        self.rounded = torch.zeros(at, device=device, dtype=dtype)
        self.rounded_gradient = torch.zeros_like(self.rounded)
        self.gradient = torch.zeros_like(self.weights)
        self._first, self._second = torch.zeros_like(self.weights), torch.zeros(at - self._adam_from, device=device)
        self.rate = torch.zeros((), device=device)  # of Muon; AdamW's is a fixed share of it
        self.adam_share = 0.1
        start = 0
        for parameter, place in zip(ordered + rest, [None] * len(ordered) + places, strict=True):
            start = start if place is None else place
            part = slice(start, start + parameter.numel())
            self.weights[part] = parameter.data.float().flatten()
            parameter.data = self.rounded[part].view(parameter.shape)
            parameter.grad = self.rounded_gradient[part].view(parameter.shape)
            start += parameter.numel()
        self.rounded.copy_(self.weights)

    def collect(self) -> None:
        """Adds the gradients of one batch to those of the step, in float32."""
        self.gradient.add_(self.rounded_gradient)
        self.rounded_gradient.zero_()

    def step(self, batches: int) -> None:
        """One update from the gradients of so many batches."""
        gradient = self.gradient.div_(batches)
        gradient.mul_((1.0 / (gradient.norm() + 1e-6)).clamp(max=1.0))
        self._first.lerp_(gradient, 1 - 0.95)
        self.weights[: self._adam_from].mul_(1 - self.rate * self._decay)
        for start, end, shape in self._groups:
            ahead = gradient[start:end].lerp(self._first[start:end], 0.95).view(-1, *shape)  # Nesterov
            update = _orthogonal(ahead).float() * math.sqrt(max(1.0, shape[0] / shape[1]))
            self.weights[start:end].sub_(update.flatten() * self.rate)
        rest = slice(self._adam_from, None)
        self._second.lerp_(gradient[rest].square(), 1 - 0.98)
        update = self._first[rest] / (self._second.sqrt() + 1e-8)
        self.weights[rest].sub_(update * (self.rate * self.adam_share))
        self.rounded.copy_(self.weights)
        gradient.zero_()


def _matrix_shape(name: str, parameter: torch.nn.Parameter) -> tuple[int, int]:
    """A merged query, key and value matrix counts as three."""
    rows, columns = parameter.shape
    return (rows // 3, columns) if "qkv" in name else (rows, columns)


def _orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """[count, rows, columns] -> the nearest matrices whose singular values are all about 1."""
    x: Any = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
