"""What the server itself tells of a request: the `metadata` that Sightline adds for return_timings; other servers do not."""

from collections.abc import Mapping
from typing import Any

from sightline.bench.load.request_result import RequestResult
from sightline.bench.load.target import Target


def with_timings(extra_body: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Asks for them where they are known: a hosted API refuses fields that it does not know."""
    return {"return_timings": True, **extra_body} if target.is_sightline else dict(extra_body)


def tower_ms(answer: RequestResult) -> float | None:
    timings = answer.metadata.get("timings_ms")
    if not isinstance(timings, dict):
        return None
    value = timings.get("encode", 0.0)  # a request without work for the tower has no such stage
    return float(value) if isinstance(value, int | float) else None


def encoded_items(answer: RequestResult) -> int | None:
    value = answer.metadata.get("encoded_items")
    return value if isinstance(value, int) else None
