"""An op is a torch function; faster kernels register against it.

The definition is plain torch, runs on every device and is the reference in tests. A kernel is a faster function with the same
arguments and results and a predicate that says, from the arguments alone (devices, dtypes, shapes, whether there is a
workspace), when it may be used. The first kernel whose predicate holds runs; else the definition does. Where the user has named
a backend (`using_backend`), only its kernels count. `Op.choose` decides it, for calls and for those who ask what a call would
run. One test (tests/ops/test_every_op.py) enumerates every op, its examples and its kernels.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

OPS: "dict[str, Op[..., Any]]" = {}
_definitions_only = False
_backend: contextvars.ContextVar[str | None] = contextvars.ContextVar("backend", default=None)


class NoKernelError(LookupError):
    """The backend that is to be used has no kernel for a call."""


@dataclass(frozen=True)
class Tolerance:
    """How far a kernel may be from the definition: |kernel - definition| <= absolute + relative * |definition|."""

    absolute: float
    relative: float


EXACT = Tolerance(0.0, 0.0)
DEFINITION = "definition"  # its name among implementations


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
class Implementation(Generic[P, R]):
    """One way to run an op: a kernel, or the definition."""

    name: str
    run: Callable[P, R]
    when: Callable[P, bool]
    graph_safe: bool = False  # a CUDA graph of it stays right when tensors change: it takes nothing that varies from the host
    uses_workspace: bool = False  # where it is handed one
    backend: str | None = None  # what it comes from, where users can choose; None: it leaves that to the ops it calls


def _always(*_: object, **__: object) -> bool:
    return True


class Op(Generic[P, R]):
    """A callable op: its definition, its kernels, and the inputs and tolerances they are tested with."""

    def __init__(
        self,
        definition: Callable[P, R],
        examples: Examples,
        tolerances: Mapping[torch.dtype, Tolerance],
        backend: str | None = None,
    ) -> None:
        self.name = definition.__name__
        self.reference: Implementation[P, R] = Implementation(DEFINITION, definition, _always, backend=backend)
        self._has_backends = backend is not None
        self.examples = examples
        self.tolerances = dict(tolerances)
        self.kernels: list[Implementation[P, R]] = []
        self.__doc__ = definition.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._choose(args, kwargs).run(*args, **kwargs)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Implementation[P, R]:
        """What a call with these arguments runs."""
        return self._choose(args, kwargs)

    def _choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Implementation[P, R]:
        """Decoding makes hundreds of calls a step: arguments are not packed a second time, and no empty dict is unpacked."""
        if _definitions_only:
            return self.reference
        wanted = _backend.get() if self._has_backends else None
        for kernel in self.kernels:
            if wanted is not None and kernel.backend not in (wanted, None):
                continue
            if kernel.when(*args, **kwargs) if kwargs else kernel.when(*args):  # type: ignore[call-arg]
                return kernel
        if wanted is not None and wanted != self.reference.backend:
            raise NoKernelError(f"{self.name} has no kernel of {wanted} for these arguments.")
        return self.reference

    @property
    def definition(self) -> Callable[P, R]:
        return self.reference.run

    def kernel(
        self,
        name: str,
        when: Callable[P, bool],
        graph_safe: bool = False,
        before: str | None = None,
        uses_workspace: bool = False,
        backend: str | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: registers a faster function under `name`, used when `when(...)` holds and no kernel in front of it does.

        It goes behind the kernels that are there, or in front of the one named.
        """

        def register(run: Callable[P, R]) -> Callable[P, R]:
            names = [kernel.name for kernel in self.kernels]
            position = names.index(before) if before in names else len(names)
            self.kernels.insert(position, Implementation(name, run, when, graph_safe, uses_workspace, backend))
            return run

        return register


def op(
    examples: Examples, tolerances: Mapping[torch.dtype, Tolerance], backend: str | None = None
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Decorator: makes a torch function the definition of an op.

    `examples` yields keyword arguments; `tolerances` has an entry for each floating dtype the op takes (float32 at least).
    With a `backend`, which is the definition's, it is among the ops whose backend can be chosen.
    """

    def register(definition: Callable[P, R]) -> Op[P, R]:
        if definition.__name__ in OPS:
            raise ValueError(f"op {definition.__name__} is defined twice")
        made = Op(definition, examples, tolerances, backend)
        OPS[made.name] = made
        return made

    return register


@contextlib.contextmanager
def using_backend(name: str | None) -> Iterator[None]:
    """Inside, in this thread, ops whose backend can be chosen run kernels of this one alone, or fail; None: the fastest."""
    before = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(before)


@contextlib.contextmanager
def definitions_only() -> Iterator[None]:
    """Inside, every op runs its torch definition: the reference path, for tests and for narrowing a fault down."""
    global _definitions_only
    before, _definitions_only = _definitions_only, True
    try:
        yield
    finally:
        _definitions_only = before


def kernels_are_on() -> bool:
    """False inside definitions_only(): a graph of kernels must not run there, nor one be captured."""
    return not _definitions_only
