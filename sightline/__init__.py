"""Sightline serves vision-language models with the vision path at the speed of the hardware."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "ImageEmbeddings", "SamplingParams", "StructuredOutput", "ToolCall", "__version__"]

# Threads of torch that wait for others sleep. By default they spin, and where processors are shared that takes them from those
# who are waited for. It is read when torch loads its OpenMP library, so it must be said before anything here imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from sightline.llm import LLM
    from sightline.media.arrays import ImageEmbeddings
    from sightline.types import Completion, SamplingParams, StructuredOutput, ToolCall


def __getattr__(name: str) -> Any:
    """Imports on first use: `import sightline` alone loads neither torch nor numpy."""
    if name == "LLM":
        from sightline.llm import LLM

        return LLM
    if name == "ImageEmbeddings":
        from sightline.media.arrays import ImageEmbeddings

        return ImageEmbeddings
    if name in __all__:
        from sightline import types

        return getattr(types, name)
    raise AttributeError(f"module 'sightline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
