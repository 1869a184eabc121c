"""Kernels that start while the one before them ends: "programmatic dependent launch", on chips from Hopper on.

A step of decoding is a chain of some 300 kernels of a few microseconds each, and each start costs one or two of them. A kernel
that starts early reads weights, which nobody writes, then waits until the one before it has written everything. It lets the
next one start at once, for that one waits in turn.
"""

import functools
import os
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Not measured in whole steps yet, so off unless asked for.
ON = os.environ.get("SIGHTLINE_EARLY_START") == "1"
_FEW = 1024  # rows: longer kernels gain nothing


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):
    """Before this a kernel may touch only what no kernel writes."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


def early_start(rows: int, device: torch.device) -> dict[str, Any]:
    """Arguments of a launch whose kernel has a constant EARLY."""
    early = ON and rows <= _FEW and _is_possible(device)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@functools.cache
def _is_possible(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
