"""Sightline serves vision-language models with the vision path at the speed of the hardware."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "SamplingParams", "StructuredOutput", "__version__"]

if TYPE_CHECKING:
    from sightline.llm import LLM
    from sightline.types import Completion, SamplingParams, StructuredOutput


def __getattr__(name: str) -> Any:
    """Imports on first use: `import sightline` alone loads neither torch nor numpy."""
    if name == "LLM":
        from sightline.llm import LLM

        return LLM
    if name in ("Completion", "SamplingParams", "StructuredOutput"):
        from sightline import types

        return getattr(types, name)
    raise AttributeError(f"module 'sightline' has no attribute {name!r}")
