"""Values made in threads ahead of whoever takes them, in order and within a bound."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

# One thread alone reads from a fast disk, or copies to a GPU, at a fraction of what these can do.
_MOST_THREADS = 8


def read_ahead(
    make: Callable[[A], B],
    of: Iterable[A],
    threads: int | None = None,
    size: Callable[[A], int] | None = None,
    most: int = 0,
) -> Iterator[tuple[A, B]]:
    """(x, make(x)) for each x, in order, errors in their turn.

    At most two values per thread are made and not taken. With `size`, their sizes sum to `most` at most, unless it is one
    alone.
    """
    count = threads or min(_MOST_THREADS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(count, thread_name_prefix="read")
    waiting: deque[tuple[A, Future[B], int]] = deque()
    held = 0
    try:
        for one in of:
            needed = size(one) if size is not None else 0
            while waiting and (len(waiting) >= 2 * count or (size is not None and held + needed > most)):
                first, made, freed = waiting.popleft()
                yield first, made.result()
                held -= freed
            waiting.append((one, pool.submit(make, one), needed))
            held += needed
        while waiting:
            first, made, _ = waiting.popleft()
            yield first, made.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
