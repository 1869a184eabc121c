"""Triton's interpreter, mended where the versions we have do not fit together; and where tests of kernels run."""

import functools
from typing import Any

import pytest
import torch

from sightline.ops.triton import INTERPRETED

# What is not interpreted on a CPU is run again there by test_interpreter.py, in a process in which it is.
KERNEL_DEVICES = (
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="Triton is not interpreted")),
    pytest.param("cuda", marks=pytest.mark.gpu),
)


@functools.cache
def mend_the_interpreter() -> None:
    """Loops with bounds from memory: Triton 3.6 makes an int of an array of one element, which numpy 2.4 refuses.
    And 8-bit floats: its rounding loses the carry, where a GPU rounds to the nearest. Does nothing where it does not run."""
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    before = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        before(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    convert = interpreter._convert_float

    def converted(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source.name, target.name) != ("fp32", "fp8e4nv"):
            return convert(values, source, target, rounding)
        return torch.from_numpy(values.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    interpreter._convert_float = converted
