"""How much the unfinished requests hold in memory, within limits: a body before it is read, then what becomes of it.

Who does not fit waits in line with its body unread, for `queue_timeout_s` at most.

    new       wants room for its whole body, or for the beginning of one whose length nobody knows. In order of arrival: nobody
              passes the first, however small.
    growing   wants more than it has: a body in chunks, media that are fetched. It goes before new ones, for what it holds is
              free only when it gets on.

Growing ones could hold all memory between them, each waiting for another's. So the first of them takes whatever is free, and
the others only as much as leaves room for it even if it came to need the most that one may. Where they hold all there is
nevertheless, because their bodies were large before they began to grow, the first goes beyond the limit.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from sightline.host_memory import give_freed_memory_back
from sightline.server.errors import ApiError, busy

MB = 1_000_000
_MUCH_FREED = 256 * MB
_LONGEST_S = 30 * 86400.0  # a wait that is as good as none at all to event loops, which count milliseconds


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


@dataclass(eq=False)
class _Want:
    entry: "Entry"
    count: int
    most: int | None  # what the entry may come to need, if it grows
    granted: "asyncio.Future[None]"


class AdmissionBudget:
    def __init__(self, max_mb: float, max_requests: int, queue_timeout_s: float = 0.0) -> None:
        self.max_bytes, self._max_requests = int(max_mb * MB), max_requests
        self._queue_timeout_s = queue_timeout_s
        self.bytes = 0
        self.requests = 0
        self._new: dict[_Want, None] = {}  # in order of arrival
        self._more: dict[_Want, None] = {}  # likewise, of growing ones
        self._growing: dict[Entry, int] = {}  # and the most bytes that each may come to need
        self._growing_bytes = 0  # that they hold
        self._needs: Counter[int] = Counter()  # how often each of these most occurs
        self._most_bytes = 0  # since memory was last given back

    @property
    def waiting(self) -> int:
        return len(self._new) + len(self._more)

    def open(self) -> "Entry":
        if self.requests >= self._max_requests:
            raise busy(f"The server is busy with {self.requests} requests, the most allowed (max_inflight_requests).")
        return Entry(self)

    async def obtain(self, entry: "Entry", count: int, most: int | None, left: "asyncio.Future[None] | None") -> None:
        """More bytes for an entry, as soon as its turn has come. `left` is done when nobody waits for it any more."""
        if entry.bytes + count > self.max_bytes:
            raise ApiError(
                413,
                f"The request needs more than the {self.max_bytes / MB:g} MB that all may hold together (max_inflight_mb).",
                code="request_too_large",
            )
        want = _Want(entry, count, most, asyncio.get_running_loop().create_future())
        line = self._new if entry.is_new else self._more
        if most is not None and not entry.is_new:
            self._begin_growth(entry, most)
        line[want] = None
        try:
            self._admit()
            if not want.granted.done():
                await self._wait(want, left)
        finally:
            if line.pop(want, 0) is None:  # it gives up, and may have stood before others
                self._admit()

    async def _wait(self, want: _Want, left: "asyncio.Future[None] | None") -> None:
        futures = {want.granted} if left is None else {want.granted, left}
        with want.entry.waiting():
            patience_s = min(self._queue_timeout_s - want.entry.waited_s, _LONGEST_S)
            if patience_s > 0:
                await asyncio.wait(futures, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if want.granted.done():
            return
        if left is not None and left.done():
            raise ClientGone
        waited = f" for {self._queue_timeout_s:g} s (queue_timeout_s)" if self._queue_timeout_s else ""
        raise busy(
            f"Requests in progress hold {self.bytes // MB} of {self.max_bytes / MB:g} MB (max_inflight_mb), and there was no "
            f"room for {want.count / MB:.3g} MB more{waited}."
        )

    def _begin_growth(self, entry: "Entry", most: int) -> None:
        if entry not in self._growing:
            self._growing[entry] = most
            self._growing_bytes += entry.bytes
            self._needs[most] += 1

    def end_growth(self, entry: "Entry") -> None:
        most = self._growing.pop(entry, None)
        if most is not None:
            self._growing_bytes -= entry.bytes
            self._needs -= Counter({most: 1})
            self._admit()

    def _admit(self) -> None:
        """Grants what there is room for."""
        for want in list(self._more):
            if self._may_grow(want):
                if not self._fits(want) and not self._is_stuck():
                    return  # what is given back is for it
                self._grant(self._more, want)
        while self._new:
            want = next(iter(self._new))
            if not self._fits(want) or not self._may_grow(want):
                return
            self._grant(self._new, want)

    def _fits(self, want: _Want) -> bool:
        return self.bytes + want.count <= self.max_bytes

    def _may_grow(self, want: _Want) -> bool:
        first = next(iter(self._growing), want.entry)
        if want.most is None or want.entry is first:
            return True
        others = self._growing_bytes - first.bytes
        return others + want.count <= self.max_bytes - max(want.most, *self._needs)

    def _is_stuck(self) -> bool:
        """Nobody is left who could give anything back."""
        return self.bytes == self._growing_bytes and self._growing.keys() <= {want.entry for want in self._more}

    def _grant(self, line: dict[_Want, None], want: _Want) -> None:
        del line[want]
        if not want.granted.done():  # else who wanted it has been cancelled in this turn of the loop
            want.entry.is_new = False
            if want.most is not None:
                self._begin_growth(want.entry, want.most)
            self.change(want.entry, want.count)
            want.granted.set_result(None)

    def change(self, entry: "Entry", count: int) -> None:
        """So many bytes more, or fewer, for an entry."""
        entry.bytes += count
        self.bytes += count
        self._most_bytes = max(self._most_bytes, self.bytes)
        if entry in self._growing:
            self._growing_bytes += count
        if count < 0:
            self._admit()

    def close(self, entry: "Entry") -> None:
        """Bodies of many megabytes leave as much behind with the allocator, whose blocks lie between others; when nobody is
        held up by it, it goes back."""
        self.end_growth(entry)
        self.requests -= 1
        self.change(entry, -entry.bytes)
        if not self.requests and self._most_bytes > _MUCH_FREED:
            self._most_bytes = 0
            threading.Thread(target=give_freed_memory_back, name="give memory back", daemon=True).start()

    def check_integrity(self) -> None:
        assert self.bytes >= 0 and self.requests >= 0
        assert self._growing_bytes == sum(entry.bytes for entry in self._growing)
        assert Counter(self._growing.values()) == self._needs
        assert all(want.entry in self._growing for want in self._more)


class Entry:
    """The share of one request, given back when the block ends."""

    def __init__(self, admission: AdmissionBudget) -> None:
        self._admission = admission
        self.bytes = 0
        self.is_new = True  # it has not been given anything yet
        self._waits = 0  # that go on, e.g. of media that are fetched side by side
        self._waited_s = 0.0  # in line, up to the first of these
        self._wait_began = 0.0

    def __enter__(self) -> "Entry":
        self._admission.requests += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._admission.close(self)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        if not self._waits:
            self._wait_began = time.monotonic()
        self._waits += 1
        try:
            yield
        finally:
            waited_s = self.waited_s
            self._waits -= 1
            if not self._waits:
                self._waited_s = waited_s

    @property
    def waited_s(self) -> float:
        """In line so far."""
        return self._waited_s + (time.monotonic() - self._wait_began if self._waits else 0.0)

    @property
    def most(self) -> int:
        """Bytes that it may hold if it is alone."""
        return self._admission.max_bytes

    async def reserve(self, count: int, left: "asyncio.Future[None] | None" = None) -> None:
        """Room for something whose size is known, before it is there."""
        await self._admission.obtain(self, count, None, left)

    async def grow(self, count: int, most: int, left: "asyncio.Future[None] | None" = None) -> None:
        """Room, or more of it, for what may come to need `most` bytes."""
        await self._admission.obtain(self, count, most, left)

    def settle(self, count: int) -> None:
        """What it holds from now on, which it has already: no more is to come."""
        self._admission.end_growth(self)
        self._admission.change(self, count - self.bytes)
