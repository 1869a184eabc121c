"""Imports that do not bring torch's compiler along."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def without_the_compiler() -> Iterator[None]:
    """Inside, marking a function as not for torch's compiler does nothing.

    A package that flash-attn-4 needs does so with a function of its own, and the mark imports the whole compiler: seconds at
    every start, for something that is never used here. A process that has imported it already keeps it.
    """
    before: Any = torch.compiler.disable
    if "torch._dynamo" not in sys.modules:
        torch.compiler.disable = _leave_alone
    try:
        yield
    finally:
        torch.compiler.disable = before


def _leave_alone(fn: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """For a decorator with and without arguments."""
    return (lambda function: function) if fn is None else fn
