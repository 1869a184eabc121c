"""What a server tells at /metrics: figures by name, and which device it runs on."""

import re
from collections.abc import Mapping

from sightline.bench.load.connection import connected, in_event_loop
from sightline.bench.load.http import TransportError
from sightline.bench.load.machine import gpu_name
from sightline.bench.load.target import Target, TargetConfig

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus's text as a map from `name` or `name{label=value,...}` to the value."""
    found = {}
    for name, labels, value in _SAMPLE.findall(text):
        shown = ",".join(f"{label}={said}" for label, said in _LABEL.findall(labels))
        found[f"{name}{{{shown}}}" if shown else name] = float(value)
    return found


async def fetch_metrics(target: Target) -> dict[str, float]:
    """What /metrics says now; empty where a server has none."""
    try:
        reply = await target.client.request("GET", "/metrics")
    except TransportError:
        return {}
    return read_metrics(reply.body.decode("utf-8", "replace")) if reply.status == 200 else {}


def metric(metrics: Mapping[str, float], name: str) -> float:
    """A metric of Sightline's; 0 if it is not there."""
    return metrics.get(f"sightline:{name}", 0.0)


def unbalanced(metrics: Mapping[str, float]) -> str | None:
    """What is wrong if started requests are not those in progress, finished, aborted and failed; None if they are.

    A server without these counters is not judged.
    """

    def total(name: str, *statuses: str) -> float:
        rows = [(row, value) for row, value in metrics.items() if row.startswith(f"sightline:{name}{{")]
        return sum(value for row, value in rows if not statuses or any(f"status={status}" in row for status in statuses))

    started, running, over = total("requests_started_total"), total("requests_in_progress"), total("requests_total")
    finished, aborted = total("requests_total", "200"), total("requests_total", "499")
    if started == running + over or not started:
        return None
    parts = f"{finished:g} finished, {aborted:g} aborted, {over - finished - aborted:g} failed and {running:g} in progress"
    return f"{started:g} requests were started, but {parts}"


def busy_seconds(metrics: Mapping[str, float]) -> float | None:
    """How long the device has worked on steps and on images in them; None where a server does not tell."""
    told = [value for name, value in metrics.items() if name.startswith("sightline:engine_busy_seconds_total{")]
    return sum(told) if told else None


async def served_device(target: Target) -> str:
    """What a summary calls the device: the GPU's name, or what the server says of itself."""
    return device_in(await fetch_metrics(target))


def device_in(metrics: Mapping[str, float]) -> str:
    named = next((re.findall(r"device=([^,}]*)", name)[0] for name in metrics if name.startswith("sightline:info{")), "unknown")
    if named.startswith("cuda"):
        return gpu_name() or str(named)
    return str(named)


def device_of(config: TargetConfig) -> str:
    """The same from outside an event loop."""

    async def ask() -> str:
        async with connected(config) as target:
            return await served_device(target)

    return in_event_loop(ask())
