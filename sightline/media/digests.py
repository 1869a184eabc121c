"""SHA-256 of several files side by side: Python lets go of its lock while it hashes, where there are cores to hash on."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sightline.processors import available_processors

_WORTHWHILE = 500_000  # bytes; they take some 0.3 ms, and threads 0.1 to wake up
_MOST_THREADS = 3


class Digester:
    """Threads of its own, which wait for nobody: others may wait for them."""

    def __init__(self, threads: int | None = None) -> None:
        """As many `threads` beside the caller's; by default some if there are cores to spare, else none."""
        if threads is None:
            threads = min(_MOST_THREADS, max(0, available_processors() // 2 - 1))
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="digests") if threads else None
        self._shares = threads + 1

    def digests(self, files: Sequence[bytes]) -> list[bytes]:
        if self._threads is None or len(files) < 2 or sum(map(len, files)) < _WORTHWHILE:
            return [digest_of(data) for data in files]
        shares = _shared_out([len(data) for data in files], self._shares)
        others = [self._threads.submit(_digests_of, files, share) for share in shares[1:] if share]
        found = _digests_of(files, shares[0])
        for other in others:
            found |= other.result()
        return [found[index] for index in range(len(files))]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _shared_out(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Indices in `count` shares of about equal size: the largest first, each to who has least."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        least = loads.index(min(loads))
        shares[least].append(index)
        loads[least] += sizes[index]
    return shares


def _digests_of(files: Sequence[bytes], indices: Sequence[int]) -> dict[int, bytes]:
    return {index: digest_of(files[index]) for index in indices}


def digest_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
