"""Kernels in Triton. `sightline.ops.kernels` imports them where Triton can run.

Triton's interpreter (TRITON_INTERPRET=1 before Triton is imported) runs them on a CPU, which is how they are tested without a
GPU; then they take CPU tensors too.
"""

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def runs_here(x: torch.Tensor) -> bool:
    return x.is_cuda or INTERPRETED


def next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
