"""The block of 50 columns in which serving benchmarks are printed."""

import textwrap
from collections.abc import Iterator

from sightline.bench.load.lag import LIMIT_MS, Lag
from sightline.bench.load.statistics import Spread, Statistics

WIDTH = 50


def result_block(
    figures: Statistics,
    lag: Lag,
    rate: float,
    max_concurrency: int | None,
    device_busy_share: float | None = None,
    backend: str = "openai-chat",
) -> str:
    return "\n".join(_lines(figures, lag, rate, max_concurrency, device_busy_share, backend))


def warnings(figures: Statistics, lag: Lag) -> list[str]:
    """What a reader must know before he believes the figures."""
    found = []
    if lag.is_bottleneck:
        found.append(
            f"This client's own work made it late by {lag.own_p99:.1f} ms at P99 (limit: {LIMIT_MS:g} ms): it is a bottleneck. "
            "Send fewer streams, or share them out to several clients."
        )
    elif lag.is_crowded:
        found.append(
            f"This client was late by {lag.p99:.1f} ms at P99 (limit: {LIMIT_MS:g} ms), because other programs had its core: "
            "latencies are too long by up to that. Give it a core of its own, or run it on another machine."
        )
    if figures.completed and not figures.output_tokens_told:
        found.append("The server tells no usage: generated tokens are chunks with text, input tokens are unknown.")
    return found


def row(name: str, value: int | float | str | None) -> str:
    shown = "n/a" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name + ':':<40} {shown:<9}".rstrip()


def _title(text: str, fill: str) -> str:
    return f"{text:{fill}^{WIDTH}}"


def _lines(
    figures: Statistics, lag: Lag, rate: float, max_concurrency: int | None, device_busy_share: float | None, backend: str
) -> Iterator[str]:
    yield _title(" Serving Benchmark Result ", "=")
    yield row("Backend", backend)
    yield row("Traffic request rate", "inf" if rate == float("inf") else rate)
    yield row("Max request concurrency", max_concurrency if max_concurrency else "not set")
    yield row("Successful requests", figures.completed)
    yield row("Failed requests", figures.failed)
    yield row("Benchmark duration (s)", figures.duration)
    yield row("Total input tokens", figures.input_tokens)
    yield row("Total input text tokens", figures.text_tokens)
    yield row("Total input vision tokens", figures.vision_tokens)
    yield row("Total cached tokens", figures.cached_tokens)
    yield row("Total generated tokens", figures.output_tokens)
    if figures.retokenized_tokens is not None:
        yield row("Total generated tokens (retokenized)", figures.retokenized_tokens)
    yield row("Request throughput (req/s)", figures.request_throughput)
    yield row("Input token throughput (tok/s)", figures.input_throughput)
    yield row("Output token throughput (tok/s)", figures.output_throughput)
    yield row("Peak output token throughput (tok/s)", figures.peak_output_tokens_per_s)
    yield row("Peak concurrent requests", figures.peak_concurrency)
    yield row("Total token throughput (tok/s)", figures.total_throughput)
    yield row("Concurrency", figures.concurrency)
    if device_busy_share is not None:
        yield row("Device busy with steps (%)", 100 * device_busy_share)
    yield from _section("End-to-End Latency", "E2E Latency", figures.e2el)
    yield from _section("Time to First Token", "TTFT", figures.ttft)
    if figures.text_came_later:
        yield from _section("Time to First Text", "first text", figures.first_text)
    # Of answers with one token there is none; benchmarks print 0.00 then, and programs that read them look for the lines.
    none = Spread.of([0.0]) if figures.ttft is not None else None
    yield from _section("Time per Output Token (excl. 1st token)", "TPOT", figures.tpot or none)
    yield from _section("Inter-Token Latency", "ITL", figures.itl or none)
    if figures.failures:
        yield _title("Failures", "-")
        for kind, count, message in figures.failures:
            yield row(kind[:39], count)
            yield from textwrap.wrap(message, WIDTH, initial_indent="  ", subsequent_indent="  ", max_lines=4)
    yield _title("This Client", "-")
    yield row("Median event-loop lag (ms)", lag.median)
    yield row("P99 event-loop lag (ms)", lag.p99)
    yield row("P99 of its own work (ms)", lag.own_p99)
    yield row("Share of a core (%)", 100 * lag.cpu)
    yield "=" * WIDTH


def _section(title: str, name: str, spread: Spread | None) -> Iterator[str]:
    if spread is None:
        return
    yield _title(title, "-")
    yield row(f"Mean {name} (ms)", spread.mean)
    yield row(f"Median {name} (ms)", spread.median)
    for percent, value in spread.percentiles.items():
        yield row(f"P{percent} {name} (ms)", value)
    yield row(f"Max {name} (ms)", spread.max)
