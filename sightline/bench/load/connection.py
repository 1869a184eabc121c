"""A server to ask, for as long as it is needed, and the event loop to do it in."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sightline.bench.load.target import Target, TargetConfig

T = TypeVar("T")


def in_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs on uvloop where there is one: it reads hundreds of sockets with a third of the work."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


@asynccontextmanager
async def connected(config: TargetConfig) -> AsyncIterator[Target]:
    target = Target(config)
    try:
        await target.look_up()
        yield target
    finally:
        target.close()
