"""Kernels that start while the one before them ends: "programmatic dependent launch", on chips from Hopper on.

A step of decoding is a chain of some 300 kernels of a few microseconds each, and each start costs one or two of them. A kernel
that starts early waits until the one before it has written everything, and lets the next one start at once, for that one waits
in turn. On an H200 steps of 32 and 128 sequences took 6.11 and 9.90 ms so, 6.27 and 10.34 without. Small-M GEMMs do not
start early, which costs more than it gives; but they let the next kernel start when their loop is done (docs/performance.md).
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_MOST = 1024  # rows; for longer kernels nothing is gained


@triton.jit
def wait_for_dependencies(PDL: tl.constexpr):
    """Before this a kernel may touch only what no kernel writes."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """From a kernel that does not start early itself, when its long part is done."""
    if PDL:
        gdc_launch_dependents()


def dependent_launch(rows: int, device: torch.device) -> dict[str, Any]:
    """Arguments of a launch whose kernel has a constant PDL."""
    early = rows <= _MOST and has_dependent_launch(device)
    return {"PDL": True, "launch_pdl": True} if early else {"PDL": False}


@functools.cache
def has_dependent_launch(device: torch.device) -> bool:
    """Whether kernels can on this device."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
