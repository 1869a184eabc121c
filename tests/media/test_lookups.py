"""Names that never resolve hold up nobody for long: neither others of the same request, nor of the same key, nor of another."""

import asyncio
import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from sightline.media.lookups import MOST_THREADS, PER_CALLER, PER_REQUEST, LookUps, _resolve

SLOT_S = 0.1


class Internet:
    """Knows good.example; never answers for names that begin with "never" until it is over."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked = 0
        self.asking = 0
        self.most_asking = 0

    def resolve(self, host: str, port: int) -> list[str]:
        self.asked += 1
        if host.startswith("never"):
            self.asking += 1
            self.most_asking = max(self.most_asking, self.asking)
            self.over.wait(60)
            self.asking -= 1
        if host != "good.example":
            raise OSError("nobody knows it")
        return ["93.184.216.34"]


@pytest.fixture
def internet() -> Iterator[Internet]:
    made = Internet()
    yield made
    made.over.set()


def look_ups(internet: Internet, **options: int) -> LookUps:
    return LookUps(internet.resolve, SLOT_S, **options)


async def give_up(look_up: Awaitable[object], after_s: float) -> None:
    with contextlib.suppress(TimeoutError, OSError):
        await asyncio.wait_for(look_up, after_s)


async def seconds_of(found: Awaitable[object]) -> float:
    began = time.monotonic()
    assert await found == ["93.184.216.34"]
    return time.monotonic() - began


def test_names_that_never_resolve_do_not_stop_a_good_one(internet: Internet) -> None:
    """Two hundred of them, of as many requests of one key, none of which gives up. Red when one keeps its slot."""

    async def ask() -> float:
        own = look_ups(internet)
        bad = [asyncio.ensure_future(own.resolver("key")(f"never-{number}.example", 80)) for number in range(200)]
        await asyncio.sleep(0.01)
        other = await seconds_of(own.resolver("another key")("good.example", 80))
        same = await seconds_of(own.resolver("key")("good.example", 80))
        for task in bad:
            task.cancel()
        await asyncio.gather(*bad, return_exceptions=True)
        assert other < 1.0, "another key waits"
        return same

    assert asyncio.run(ask()) < 20 * SLOT_S + 200 / PER_CALLER * SLOT_S
    assert internet.most_asking > PER_CALLER, "those without a slot go on"


def test_abandoned_look_ups_hold_no_place(internet: Internet) -> None:
    """Red when slots are free only when the resolver returns: after the sixteenth nobody else had one."""

    async def ask() -> None:
        own = look_ups(internet)
        for _ in range(4):
            await asyncio.gather(*(give_up(own.resolver("key")(f"never-{n}.example", 80), 0.05) for n in range(PER_CALLER)))
        assert await seconds_of(own.resolver("key")("good.example", 80)) < 1.0

    asyncio.run(ask())


def test_a_request_and_a_key_have_limits(internet: Internet) -> None:
    """Red when one request, or all of a key, start as many threads as they name hosts."""

    async def ask() -> None:
        own = look_ups(internet)
        one_request = own.resolver("key")
        many = [asyncio.ensure_future(one_request(f"never-{number}.example", 80)) for number in range(50)]
        await asyncio.sleep(SLOT_S / 4)
        assert internet.asking == PER_REQUEST
        more = [asyncio.ensure_future(own.resolver("key")(f"never-{number}.example", 80)) for number in range(50)]
        await asyncio.sleep(SLOT_S / 4)
        assert internet.asking <= PER_CALLER
        for task in (*many, *more):
            task.cancel()
        await asyncio.gather(*many, *more, return_exceptions=True)

    asyncio.run(ask())


def test_threads_have_a_limit_of_which_one_key_has_half(internet: Internet) -> None:
    """Red when whoever asks and leaves, again and again, makes threads without end, or leaves none for others."""

    async def ask() -> None:
        own = look_ups(internet, most_threads=20)
        await asyncio.gather(*(give_up(own.resolver("key")(f"never-{number}.example", 80), 1.0) for number in range(60)))
        assert own.threads == 10
        assert await seconds_of(own.resolver("another key")("good.example", 80)) < 1.0
        internet.over.set()
        assert await seconds_of(own.resolver("key")("good.example", 80)) < 5.0
        assert not own._held and not own._waiting, "nothing is left behind"

    asyncio.run(ask())
    assert MOST_THREADS // 2 >= PER_CALLER


def test_askers_that_leave_while_they_wait_leave_nothing(internet: Internet) -> None:
    """Red when a slot that is handed to somebody who has left is lost."""

    async def ask() -> None:
        own = look_ups(internet, most_threads=4)
        for _ in range(20):
            tasks = [asyncio.ensure_future(own.resolver("key")("good.example", 80)) for _ in range(10)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(answer == ["93.184.216.34"] for answer in found[1::2]), found
        while own.threads:
            await asyncio.sleep(0.01)
        assert not own._held and not own._waiting

    asyncio.run(asyncio.wait_for(ask(), 30))


def test_names_become_addresses_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads of their own. Red if names are looked up on the event loop, or an address is given twice."""
    assert asyncio.run(_await(LookUps(), "127.0.0.1")) == ["127.0.0.1"]
    threads = []

    def twice(host: str, port: int, **_: object) -> list[object]:
        threads.append(threading.current_thread().name)
        return [(2, 1, 6, "", ("10.0.0.1", port)), (2, 1, 17, "", ("10.0.0.1", port)), (10, 1, 6, "", ("::1", port, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", twice)
    assert asyncio.run(_await(LookUps(), "host.example")) == ["10.0.0.1", "::1"]
    assert threads[0].startswith("sightline-dns")
    assert [str(ipaddress.ip_address(text)) for text in _resolve("x", 1)] == ["10.0.0.1", "::1"]


async def _await(own: LookUps, host: str) -> object:
    look: Callable[[str, int], Awaitable[object]] = own.resolver()
    return await look(host, 80)
