"""Which figure of a run a key of summary.json stands for: the part before the first dot says so."""

from collections.abc import Callable

from sightline.bench.load.statistics import Spread, Statistics
from sightline.errors import ConfigError


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


SERVE_FIGURES: dict[str, Callable[[Statistics], float | None]] = {
    "ttft_ms": lambda found: _median(found.ttft),
    "repeat_ttft_ms": lambda found: _median(found.ttft),
    "itl_ms": lambda found: _median(found.itl),
    "e2el_ms": lambda found: _median(found.e2el),
    "serve_rps": lambda found: found.request_throughput,
    "decode_tok_s": lambda found: found.output_throughput,
}


def check_serve_key(key: str) -> None:
    name = key.partition(".")[0]
    if name not in SERVE_FIGURES:
        raise ConfigError(
            f"--summary-key is {key!r}, but must begin with one of {', '.join(SERVE_FIGURES)}, such as ttft_ms.560."
        )


def serve_figure(key: str, found: Statistics) -> float | None:
    """None where there is no such figure, and where a request failed: half a run is no figure."""
    check_serve_key(key)
    return SERVE_FIGURES[key.partition(".")[0]](found) if not found.failed else None
