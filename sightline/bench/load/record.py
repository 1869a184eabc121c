"""A run as one line of JSON: the key names of `vllm bench serve`, and ours. Says nothing of this machine's names and paths."""

import json
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.bench.load.generate import LoadResult
from sightline.bench.load.lag import Lag
from sightline.bench.load.statistics import Spread, Statistics


def serve_record(
    result: LoadResult,
    figures: Statistics,
    settings: Mapping[str, Any],
    with_texts: bool,
    device_busy_share: float | None = None,
) -> dict[str, Any]:
    """Times in lists are seconds, of all requests in their order; a failed one has 0 and no gaps. Figures end in _ms."""
    answers = result.answers
    good = [answer.failure is None for answer in answers]
    record: dict[str, Any] = {
        **heading("serve", settings),
        "duration": figures.duration,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.input_tokens,
        "total_input_text_tokens": figures.text_tokens,
        "total_input_vision_tokens": figures.vision_tokens,
        "total_cached_tokens": figures.cached_tokens,
        "total_output_tokens": figures.output_tokens,
        "total_output_tokens_retokenized": figures.retokenized_tokens,
        "output_tokens_counted_by": "server" if figures.output_tokens_told else "chunks",
        "request_throughput": figures.request_throughput,
        "request_goodput": None,
        "input_throughput": figures.input_throughput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_throughput,
        "max_output_tokens_per_s": figures.peak_output_tokens_per_s,
        "max_concurrent_requests": figures.peak_concurrency,
        "concurrency": figures.concurrency,
        "device_busy_share": device_busy_share,
    }
    for name, spread in (
        ("ttft", figures.ttft),
        ("tpot", figures.tpot),
        ("itl", figures.itl),
        ("e2el", figures.e2el),
        ("first_text", figures.first_text),
        ("client_queue_time", figures.queued),
    ):
        record.update(spread_fields(name, spread))
    if figures.tower is not None:
        record.update(spread_fields("tower", figures.tower))
    record |= {
        "text_came_later": figures.text_came_later,
        "failures": [{"kind": kind, "count": count, "example": example} for kind, count, example in figures.failures],
        **lag_fields(result.lag),
        "input_lens": [answer.prompt_tokens or 0 for answer in answers],
        "output_lens": [answer.output_tokens if fine else 0 for answer, fine in zip(answers, good, strict=True)],
        "ttfts": [_rounded(answer.ttft or 0.0) if fine else 0.0 for answer, fine in zip(answers, good, strict=True)],
        "itls": [[_rounded(gap) for gap in answer.itls] if fine else [] for answer, fine in zip(answers, good, strict=True)],
        "latencies": [_rounded(answer.latency) if fine else 0.0 for answer, fine in zip(answers, good, strict=True)],
        "start_times": [_rounded(answer.start - result.began) for answer in answers],
        "queue_times": [_rounded(answer.queued) for answer in answers],
        "errors": [f"{answer.failure.kind}: {answer.failure.message}" if answer.failure else "" for answer in answers],
    }
    if with_texts:
        record["generated_texts"] = [answer.text for answer in answers]
    return record


def heading(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": kind,
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
        "backend": "openai-chat",
        "endpoint_type": "openai-chat",
        **{name: _plain(value) for name, value in settings.items()},
        "environment": environment(),
    }


def environment() -> dict[str, Any]:
    """The client's side; the server's is for the label to say."""
    return {
        "sightline": __version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


def spread_fields(name: str, spread: Spread | None) -> dict[str, float | None]:
    fields: dict[str, float | None] = {
        f"mean_{name}_ms": spread.mean if spread else None,
        f"median_{name}_ms": spread.median if spread else None,
        f"std_{name}_ms": spread.std if spread else None,
        f"max_{name}_ms": spread.max if spread else None,
    }
    for percent in (90, 95, 99):
        fields[f"p{percent}_{name}_ms"] = spread.percentiles[percent] if spread else None
    return fields


def lag_fields(lag: Lag) -> dict[str, float]:
    return {
        "client_lag_median_ms": lag.median,
        "client_lag_p99_ms": lag.p99,
        "client_lag_max_ms": lag.max,
        "client_own_lag_p99_ms": lag.own_p99,
        "client_cpu_share": lag.cpu,
    }


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _plain(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value
