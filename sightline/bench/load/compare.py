"""`sightline bench compare`: results of several runs beside each other, each against the first."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.bench.load.tables import Cell, ratio, table
from sightline.errors import ConfigError

_METRICS = (  # of serve, in the order of the printed block
    ("Successful requests", "completed"),
    ("Failed requests", "failed"),
    ("Total input tokens", "total_input_tokens"),
    ("Total cached tokens", "total_cached_tokens"),
    ("Total generated tokens", "total_output_tokens"),
    ("Request throughput (req/s)", "request_throughput"),
    ("Input token throughput (tok/s)", "input_throughput"),
    ("Output token throughput (tok/s)", "output_throughput"),
    ("Total token throughput (tok/s)", "total_token_throughput"),
    *(
        (f"{word} {name} (ms)", f"{key}_{metric}_ms")
        for name, metric in (("E2E Latency", "e2el"), ("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"))
        for word, key in (("Mean", "mean"), ("Median", "median"), ("P99", "p99"))
    ),
)

_SGLANG_NAMES = {  # where sglang.bench_serving calls a figure otherwise
    "total_token_throughput": "total_throughput",
    **{f"{which}_e2el_ms": f"{which}_e2e_latency_ms" for which in ("mean", "median", "p99")},
}


@dataclass(frozen=True)
class Run:
    label: str
    kind: str  # serve, multiturn or probe
    record: Mapping[str, Any]

    def number(self, key: str) -> float | None:
        value = self.record.get(key, self.record.get(_SGLANG_NAMES.get(key, key)))
        return value if isinstance(value, int | float) else None

    @property
    def load(self) -> str:
        """Under which load a serve run was, as text: runs with the same are compared."""
        rate, most = self.record.get("request_rate"), self.record.get("max_concurrency")
        said = "all at once" if rate in (None, "inf", float("inf")) else f"{rate:g} requests/s"
        return said + (f", at most {most} at a time" if most else "")


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs of all files. One without a label has its file's name. Names that two files share are told apart by a number."""
    labels: dict[str, Path] = {}
    runs = []
    for path in paths:
        for record in _records(path):
            label = str(record.get("label") or path.stem)
            tries = 2
            wanted = label
            while labels.setdefault(label, path) != path:
                label, tries = f"{wanted} ({tries})", tries + 1
            runs.append(Run(label, str(record.get("kind", "serve")), record))
    return runs


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The results {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    try:
        records = [json.loads(text)]  # one document, perhaps over many lines
    except json.JSONDecodeError:
        try:
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise ConfigError(f"The results {path} are neither JSON nor lines of JSON: {error}.") from None
    for record in records:
        if not isinstance(record, dict) or not ({"request_throughput", "rounds", "probes"} & set(record)):
            raise ConfigError(f"The results {path} are not of `sightline bench` serve, multiturn or probe, vLLM or SGLang.")
    if not records:
        raise ConfigError(f"The results {path} are empty.")
    return records


def tables(runs: Sequence[Run]) -> Iterator[str]:
    """Tables with a title each, for the kinds of results that there are."""
    serve = [run for run in runs if run.kind == "serve"]
    for load in dict.fromkeys(run.load for run in serve):
        yield _serve_table(load, latest([run for run in serve if run.load == load]))
    rounds = latest([run for run in runs if run.kind == "multiturn"])
    probes = latest([run for run in runs if run.kind == "probe"])
    yield from _by_number("TTFT (ms) by round", rounds, "rounds", "round", "ttft_ms")
    yield from _by_number("Vision tower (ms) by round", rounds, "rounds", "round", "tower_ms")
    yield from _by_number("TTFT (ms) by images in one request", probes, "probes", "images", "ttft_ms")
    if probes:
        yield _largest_table(probes)


def latest(runs: Sequence[Run]) -> list[Run]:
    """Of runs with the same label the last one, in the order of their first appearance."""
    return list({run.label: run for run in runs}.values())


def _headings(first: str, runs: Sequence[Run]) -> list[str]:
    return [first, runs[0].label, *(text for run in runs[1:] for text in (run.label, f"/ {runs[0].label}"))]


def _row(name: str, values: Sequence[float | None]) -> list[Cell]:
    base = values[0]
    return [name, base, *(cell for value in values[1:] for cell in (value, ratio(value, base)))]


def _serve_table(load: str, runs: Sequence[Run]) -> str:
    rows = [_row(name, [run.number(key) for run in runs]) for name, key in _METRICS]
    known = [row for row in rows if any(isinstance(cell, int | float) for cell in row[1:])]
    return f"Serving: {load}\n" + table(_headings("", runs), known)


def _by_number(title: str, runs: Sequence[Run], key: str, axis: str, figure: str) -> Iterator[str]:
    """A table per resolution: a row per round or number of images, a column per run."""
    entries = {run.label: {(one["resolution"], one[axis]): one.get(figure) for one in run.record[key]} for run in runs}
    for resolution in dict.fromkeys(found for known in entries.values() for found, _ in known):
        places = sorted({number for known in entries.values() for found, number in known if found == resolution})
        rows = [_row(str(number), [entries[run.label].get((resolution, number)) for run in runs]) for number in places]
        if any(isinstance(cell, int | float) for row in rows for cell in row[1:]):
            yield f"{title}, {resolution}\n" + table(_headings(axis, runs), rows)


def _largest_table(runs: Sequence[Run]) -> str:
    resolutions = list(dict.fromkeys(name for run in runs for name in run.record["largest"]))
    rows = [_row(name, [run.record["largest"].get(name) for run in runs]) for name in resolutions]
    return "Most images in one request\n" + table(_headings("resolution", runs), rows)
