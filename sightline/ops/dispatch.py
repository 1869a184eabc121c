"""An op is a torch function; faster twins register against it.

The definition is plain torch, runs on every device and is the reference in tests. A twin is a faster function with the same
arguments and results and a predicate that says, from device, dtype and shapes alone, when it may be used. The first twin
whose predicate holds runs; else the definition does. One test (tests/ops/test_every_op.py) enumerates every op, its examples
and its twins.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

OPS: "dict[str, Op[..., Any]]" = {}
_definitions_only = False


@dataclass(frozen=True)
class Tolerance:
    """How far a twin may be from the definition: |twin - definition| <= absolute + relative * |definition|."""

    absolute: float
    relative: float


EXACT = Tolerance(0.0, 0.0)


@dataclass
class ExampleMaker:
    """Makes the tensors of an op's examples, on one device and in one floating dtype, reproducibly."""

    device: torch.device
    dtype: torch.dtype
    seed: int = 0
    _generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self.device, dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self._generator).to(self.device, dtype)

    def permutation(self, count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randperm(count, generator=self._generator).to(self.device, dtype)

    def tensor(self, values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


Examples = Callable[[ExampleMaker], Iterator[dict[str, Any]]]


@dataclass(frozen=True)
class Twin(Generic[P, R]):
    name: str
    run: Callable[P, R]
    when: Callable[P, bool]
    recordable: bool = False  # a graph of it stays right when tensors change: it takes nothing that varies from the host


class Op(Generic[P, R]):
    """A callable op: its definition, its twins, and the inputs and tolerances they are tested with."""

    def __init__(self, definition: Callable[P, R], examples: Examples, tolerances: Mapping[torch.dtype, Tolerance]) -> None:
        self.name = definition.__name__
        self.definition = definition
        self.examples = examples
        self.tolerances = dict(tolerances)
        self.twins: list[Twin[P, R]] = []
        self.__doc__ = definition.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not _definitions_only:
            for twin in self.twins:
                if twin.when(*args, **kwargs):
                    return twin.run(*args, **kwargs)
        return self.definition(*args, **kwargs)

    def twin(
        self, name: str, when: Callable[P, bool], recordable: bool = False, before: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: registers a faster function under `name`, used when `when(...)` holds and no twin in front of it does.

        It goes behind the twins that are there, or in front of the one named.
        """

        def register(run: Callable[P, R]) -> Callable[P, R]:
            names = [twin.name for twin in self.twins]
            place = names.index(before) if before in names else len(names)
            self.twins.insert(place, Twin(name, run, when, recordable))
            return run

        return register


def op(examples: Examples, tolerances: Mapping[torch.dtype, Tolerance]) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Decorator: makes a torch function the definition of an op.

    `examples` yields keyword arguments; `tolerances` has an entry for each floating dtype the op takes (float32 at least).
    """

    def register(definition: Callable[P, R]) -> Op[P, R]:
        if definition.__name__ in OPS:
            raise ValueError(f"op {definition.__name__} is defined twice")
        made = Op(definition, examples, tolerances)
        OPS[made.name] = made
        return made

    return register


@contextlib.contextmanager
def definitions_only() -> Iterator[None]:
    """Inside, every op runs its torch definition: the reference path, for tests and for narrowing a fault down."""
    global _definitions_only
    before, _definitions_only = _definitions_only, True
    try:
        yield
    finally:
        _definitions_only = before


def twins_are_on() -> bool:
    """False inside definitions_only(): what was recorded with twins must not run there, nor be recorded."""
    return not _definitions_only
