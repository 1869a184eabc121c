"""Lets transformers import torchvision beside a CPU build of torch. For tests only.

torchvision's wheel is built against a CUDA torch, so its compiled operators do not load here, and importing it fails where it
registers fake kernels for operators that nobody defined. Declaring their names first is enough: transformers' processors use
torchvision's pure Python transforms only. Where the compiled operators load (a GPU machine), nothing is declared.
"""

import importlib.util
from pathlib import Path

import torch

_OPERATORS = ("nms", "qnms", "roi_align", "qroi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
_library: torch.library.Library | None = None  # kept alive: its declarations vanish with it


def declare_operators() -> None:
    global _library
    if _library is not None or _compiled_operators_load():
        return
    _library = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        for name in (operator, f"_{operator}_backward"):
            _library.define(f"{name}(Tensor x) -> Tensor")


def _compiled_operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None and spec.origin is not None, "the tests need torchvision; ./run test installs it"
    compiled = sorted(Path(spec.origin).parent.glob("_C*.so"))
    try:
        for library in compiled:
            torch.ops.load_library(str(library))
    except OSError:
        return False
    return bool(compiled)
