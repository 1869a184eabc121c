"""Tests of servers once more, with two ranks that hold the model together."""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from server.running import MORE_FLAGS

RANKS = ("--tensor-parallel-size", "2")


@contextlib.contextmanager
def two_ranks() -> Iterator[None]:
    """Every server that is started meanwhile has them."""
    MORE_FLAGS.extend(RANKS)
    try:
        yield
    finally:
        MORE_FLAGS.clear()


def tests_of(*modules: ModuleType, but: tuple[str, ...] = ()) -> dict[str, Callable[..., Any]]:
    """By name, for the globals of a module that has fixtures of its own for them."""
    found: dict[str, Callable[..., Any]] = {}
    for module in modules:
        own = {name: test for name, test in vars(module).items() if name.startswith("test_") and name not in but}
        assert not own.keys() & found.keys()
        found |= own
    return found
