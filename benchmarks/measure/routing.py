"""Routing over engines that compute nothing: what it adds to a request, whether repeats find their owner, and skewed loads.

    added     the same request to a server with one engine and to one with several, in turn; the difference of the medians
    repeats   clients that each ask again and again about images of a pool; how many repeats found the image at their engine
    skew      requests come as a Poisson process. Balanced: the first choice of each is the next engine in turn. Skewed: half of
              them show one image, the others any of a pool. The same engines, the same moments, in turn

Engines of the last take a step each --step-ms, with so many sequences at most; the others wait. The same without processes and
clocks, which no other work on the machine can disturb, is `simulated` in the results (routing_simulation.py).
"""

import asyncio
import base64
import hashlib
import io
import itertools
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from benchmarks.measure.routing_simulation import simulate
from benchmarks.measure.schedule_cost import cpu_name
from sightline.bench.load.arrivals import arrival_times
from sightline.bench.load.connection import in_event_loop
from sightline.bench.load.http import HttpClient
from sightline.bench.load.server_metrics import read_metrics
from sightline.bench.server_process import INSTANT, ServerError, serving
from sightline.server.routing import engine_names, media_key, rendezvous_order

_POOL = 128  # images
_PAUSE_S = 0.005
_READY_S = 120.0
_KEPT_MB = "256"


@dataclass(frozen=True)
class Load:
    engines: int
    sequences: int
    step_ms: float
    tokens: int
    share: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.share * self.engines * self.sequences * 1e3 / (self.step_ms * self.tokens)


@dataclass(frozen=True)
class Repeats:
    clients: int
    at_owner: float  # share of requests that went to the owner of their image
    known: float  # share of requests for an image that was shown before whose engine had it


SIMULATED = ((4, 0.7), (16, 0.3), (16, 0.7), (64, 0.3), (64, 0.7), (64, 0.95), (256, 0.3), (256, 0.7))  # sequences, share


@dataclass(frozen=True)
class Found:
    """Milliseconds."""

    alone: float
    routed: float
    repeats: tuple[Repeats, ...]
    balanced: tuple[float, ...]  # p99 of each round
    skewed: tuple[float, ...]
    spilled: float  # share of the skewed requests

    @property
    def added_ms(self) -> float:
        return self.routed - self.alone

    @property
    def skew(self) -> float:
        """The median of the rounds' ratios: a moment in which the machine does something else spoils one round."""
        return statistics.median(skewed / balanced for skewed, balanced in zip(self.skewed, self.balanced, strict=True))


def measure(load: Load, requests: int, rounds: int) -> Found:
    alone, routed = added(load, requests)
    repeats, balanced, skewed, spilled = in_event_loop(_under_load(load, requests, rounds))
    return Found(alone, routed, repeats, balanced, skewed, spilled)


# ---- What is asked


@dataclass(frozen=True)
class Picture:
    owner: int
    data: str  # base64


def pictures(count: int, engines: int) -> list[Picture]:
    """Small ones, all different."""
    random, found = np.random.default_rng(0), []
    for _ in range(count):
        file = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(file, "PNG")
        digest = hashlib.sha256(file.getvalue()).digest()
        owner = rendezvous_order(media_key("", digest), engine_names(engines))[0]
        found.append(Picture(owner, base64.b64encode(file.getvalue()).decode()))
    return found


def _body(picture: Picture, tokens: int, number: int = 0) -> bytes:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture.data}"}},
        {"type": "text", "text": f"Question {number}?"},
    ]
    return msgspec.json.encode({"messages": [{"role": "user", "content": parts}], "max_tokens": tokens})


def balanced_pictures(pool: Sequence[Picture], engines: int) -> Iterator[Picture]:
    """The engines in turn."""
    owned = [[picture for picture in pool if picture.owner == engine] for engine in range(engines)]
    turns = [itertools.cycle(own) for own in owned if own]
    return (next(turn) for turn in itertools.cycle(turns))


def skewed_pictures(pool: Sequence[Picture], seed: int) -> Iterator[Picture]:
    """Half of them the first one."""
    random = np.random.default_rng(seed)
    while True:
        yield pool[0] if random.random() < 0.5 else pool[int(random.integers(1, len(pool)))]


# ---- Who asks


class Client:
    def __init__(self, url: str, engines: int) -> None:
        self._http, self._engines = HttpClient(url), engines

    async def until_all_are_ready(self) -> None:
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            reply = await self._http.request("GET", "/server_info")
            states = [one["status"] for one in msgspec.json.decode(bytes(reply.body))["internal_states"]]
            if states == ["ready"] * self._engines:
                return
            await asyncio.sleep(0.05)
        raise ServerError(f"The engines were not ready within {_READY_S:g} s: {', '.join(states)}.")

    async def ask(self, body: bytes) -> float:
        """Seconds until the whole answer was there."""
        reply = await self._http.request("POST", "/v1/chat/completions", [body])
        if reply.status != 200:
            raise ServerError(f"The server answered with {reply.status}: {bytes(reply.body[:200])!r}")
        return reply.ended - reply.started

    async def counted(self, name: str) -> float:
        """A counter, summed over engines."""
        reply = await self._http.request("GET", "/metrics")
        rows = read_metrics(reply.body.decode())
        return sum(value for row, value in rows.items() if row.startswith(f"sightline:{name}_total"))

    async def send(self, bodies: Sequence[bytes], due: Sequence[float]) -> list[float]:
        """Seconds that each took from when it was due."""
        began = time.perf_counter()

        async def one(body: bytes, at: float) -> float:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            await self.ask(body)
            return time.perf_counter() - began - at

        return list(await asyncio.gather(*(one(body, at) for body, at in zip(bodies, due, strict=True))))

    def close(self) -> None:
        self._http.close()


# ---- What is measured


def added(load: Load, requests: int) -> tuple[float, float]:
    """Milliseconds of a request, medians: to one engine, and to several. Engines answer at once."""
    servers = [["0", "", _KEPT_MB, str(count)] for count in (1, load.engines)]
    with serving(servers[0], _READY_S, INSTANT) as one, serving(servers[1], _READY_S, INSTANT) as several:
        counts = (1, load.engines)

        async def ask() -> tuple[float, float]:
            clients = [Client(server.url(), count) for server, count in zip((one, several), counts, strict=True)]
            bodies = [_body(picture, 1) for picture in pictures(_POOL, load.engines)]
            times: tuple[list[float], list[float]] = ([], [])
            for client in clients:
                await client.until_all_are_ready()
            for number in range(requests + 20):
                for client, own in zip(clients, times, strict=True):
                    await asyncio.sleep(_PAUSE_S)
                    own.append(1e3 * await client.ask(bodies[number % len(bodies)]))
            for client in clients:
                client.close()
            return statistics.median(times[0][20:]), statistics.median(times[1][20:])

        return in_event_loop(ask())


UnderLoad = tuple[tuple[Repeats, ...], tuple[float, ...], tuple[float, ...], float]  # the last four fields of Found


async def _under_load(load: Load, requests: int, rounds: int) -> UnderLoad:
    flags = [str(load.step_ms), "", _KEPT_MB, str(load.engines), str(load.sequences)]
    with serving(flags, _READY_S, INSTANT) as server:
        client, pool = Client(server.url(), load.engines), pictures(_POOL, load.engines)
        await client.until_all_are_ready()
        repeats = []
        for clients in (load.engines, 2 * load.engines, 8 * load.engines):
            repeats.append(await _repeats(client, pool, load, clients, requests))
        balanced: list[float] = []
        skewed: list[float] = []
        spilled = 0.0
        for number in range(rounds):
            due = arrival_times(requests, load.rate, number)
            turns, any_of = balanced_pictures(pool, load.engines), skewed_pictures(pool, number)
            balanced.append(_p99_ms(await client.send([_body(next(turns), load.tokens) for _ in due], due)))
            before = await client.counted("engine_requests_spilled")
            skewed.append(_p99_ms(await client.send([_body(next(any_of), load.tokens) for _ in due], due)))
            spilled += await client.counted("engine_requests_spilled") - before
        client.close()
    return tuple(repeats), tuple(balanced), tuple(skewed), spilled / (rounds * requests)


async def _repeats(client: Client, pool: Sequence[Picture], load: Load, clients: int, requests: int) -> Repeats:
    """Every image is shown once, then so many clients ask about any of them, each one after another."""
    for picture in pool:
        await client.ask(_body(picture, 1))
    spilled, hits = await client.counted("engine_requests_spilled"), await client.counted("engine_embedding_hits")
    random = np.random.default_rng(clients)
    asked = [int(number) for number in random.integers(0, len(pool), requests)]
    work = iter(enumerate(asked))

    async def one() -> None:
        for number, picture in work:
            await client.ask(_body(pool[picture], 2, number))

    await asyncio.gather(*(one() for _ in range(clients)))
    spilled = await client.counted("engine_requests_spilled") - spilled
    hits = await client.counted("engine_embedding_hits") - hits
    return Repeats(clients, 1 - spilled / requests, hits / requests)


def _p99_ms(seconds: Sequence[float]) -> float:
    return float(1e3 * np.percentile(seconds, 99))


def report(load: Load, found: Found, requests: int, rounds: int) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "engines": load.engines,
        "sequences": load.sequences,
        "step_ms": load.step_ms,
        "tokens": load.tokens,
        "requests": requests,
        "rounds": rounds,
        "request_ms": {"one_engine": round(found.alone, 3), "several": round(found.routed, 3)},
        "added_ms": round(found.added_ms, 3),
        "repeats": [
            {"clients": each.clients, "at_owner": round(each.at_owner, 4), "known": round(each.known, 4)}
            for each in found.repeats
        ],
        "skew": {
            "share_of_capacity": load.share,
            "requests_per_second": round(load.rate, 1),
            "balanced_p99_ms": [round(one, 1) for one in found.balanced],
            "skewed_p99_ms": [round(one, 1) for one in found.skewed],
            "ratio": round(found.skew, 3),
            "spilled": round(found.spilled, 3),
        },
        "simulated": [_simulated(load.engines, *case) for case in SIMULATED],
    }


def _simulated(engines: int, sequences: int, share: float) -> dict[str, float]:
    found = simulate(engines, sequences, share)
    return {
        "sequences": sequences,
        "share_of_capacity": share,
        "skewed_to_balanced_p99": round(found.ratio, 3),
        "at_owner_without_skew": round(1 - found.spilled_evenly, 4),
    }
