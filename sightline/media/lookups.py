"""Host names to addresses, by this machine's resolver, which blocks: a name may hold a thread for a minute, and in vain.

Each look-up has a thread of its own, and a thread cannot be stopped. So what is limited are slots, kept for a short time only:

    waits for a slot ──► looks up, with a slot ──SLOT_S──► goes on without one ──► done, or nobody waits for it any more
                          PER_REQUEST, PER_CALLER             MOST_THREADS in all, half of them of one caller

A name that is known answers in milliseconds. It waits for one of its own caller's slots at most, and those become free all the
time, however many names before it never resolve.
"""

import asyncio
import socket
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from sightline.media.addresses import Resolver

SLOT_S = 1.0
PER_REQUEST, PER_CALLER, MOST_THREADS = 8, 16, 512


def _resolve(host: str, port: int) -> list[str]:
    """All addresses of a host; an OSError if there is none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class LookUps:
    """For any number of threads and event loops."""

    def __init__(
        self,
        resolve: Callable[[str, int], list[str]] = _resolve,
        slot_s: float = SLOT_S,
        most_threads: int = MOST_THREADS,
    ) -> None:
        self._resolve, self._slot_s, self._most_threads = resolve, slot_s, most_threads
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()  # slots, by caller
        self._threads: Counter[str] = Counter()  # look-ups in progress, with and without a slot, by caller
        self._waiting: OrderedDict[str, deque[Future[None]]] = OrderedDict()  # for slots, by caller, who take turns

    def resolver(self, caller: str = "") -> Resolver:
        """For the names of one request."""
        own = asyncio.Semaphore(PER_REQUEST)

        async def look_up(host: str, port: int) -> Sequence[str]:
            async with own:
                return await self._look_up(host, port, caller)

        return look_up

    @property
    def threads(self) -> int:
        """How many look-ups there are, also of names that nobody waits for any more."""
        return self._threads.total()

    async def _look_up(self, host: str, port: int, caller: str) -> list[str]:
        await self._take_slot(caller)
        try:
            found = asyncio.wrap_future(self._begin(host, port, caller))
            await asyncio.wait((found,), timeout=self._slot_s)
        finally:
            self._give_slot(caller)
        return await found

    async def _take_slot(self, caller: str) -> None:
        slot: Future[None] = Future()
        with self._lock:
            self._waiting.setdefault(caller, deque()).append(slot)
            self._hand_out()
        try:
            await asyncio.wrap_future(slot)
        except asyncio.CancelledError:
            with self._lock:
                waiting = self._waiting.get(caller)
                if waiting is not None and slot in waiting:
                    waiting.remove(slot)
                elif not slot.cancelled():  # it was handed out while its taker left
                    _count_down(self._held, caller)
                    _count_down(self._threads, caller)
                self._hand_out()
            raise

    def _give_slot(self, caller: str) -> None:
        with self._lock:
            _count_down(self._held, caller)
            self._hand_out()

    def _hand_out(self) -> None:
        """Places to those who wait, one caller after another. Needs the lock."""
        for caller in list(self._waiting):
            waiting = self._waiting[caller]
            while waiting and self._has_room(caller):
                slot = waiting.popleft()
                if slot.set_running_or_notify_cancel():
                    self._held[caller] += 1
                    self._threads[caller] += 1
                    slot.set_result(None)
                    self._waiting.move_to_end(caller)
            if not waiting:
                del self._waiting[caller]

    def _has_room(self, caller: str) -> bool:
        threads = self._threads
        return (
            self._held[caller] < PER_CALLER
            and threads[caller] < max(1, self._most_threads // 2)
            and threads.total() < self._most_threads
        )

    def _begin(self, host: str, port: int, caller: str) -> "Future[list[str]]":
        found: Future[list[str]] = Future()

        def run() -> None:
            addresses: list[str] | Exception
            try:
                addresses = self._resolve(host, port)
            except Exception as error:
                addresses = error
            self._ended(caller)
            if not found.set_running_or_notify_cancel():
                return  # nobody waits for it
            if isinstance(addresses, Exception):
                found.set_exception(addresses)
            else:
                found.set_result(addresses)

        try:
            threading.Thread(target=run, name=f"sightline-dns {host[:40]}", daemon=True).start()
        except RuntimeError as error:  # the machine has no more threads
            self._ended(caller)
            raise OSError(str(error)) from error
        return found

    def _ended(self, caller: str) -> None:
        with self._lock:
            _count_down(self._threads, caller)
            self._hand_out()


def _count_down(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


LOOK_UPS = LookUps()
