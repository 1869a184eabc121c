"""Imports that do not bring torch's compiler along."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def without_the_compiler() -> Iterator[None]:
    """Inside, marking a function as for torch's compiler, or as not for it, does nothing.

    Packages that flash-attn-4 needs do so with functions of their own, and the mark imports the whole compiler: seconds at
    every start, for something that is never used here. A process that has imported it already keeps it.
    """
    library: Any = torch  # its functions are replaced
    before = library.compiler.disable, library.compile
    if "torch._dynamo" not in sys.modules:
        library.compiler.disable = library.compile = _leave_alone
    try:
        yield
    finally:
        library.compiler.disable, library.compile = before


def _leave_alone(fn: Callable[..., Any] | None = None, *_: Any, recompile_limit: int | None = None, **__: Any) -> Any:
    """For a decorator with and without arguments. Where there is no `recompile_limit`, quack sets the compiler's own."""
    return (lambda function: function) if fn is None else fn
