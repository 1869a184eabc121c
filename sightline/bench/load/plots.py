"""Plots of results, for screens and for print: PNG and SVG, told apart by marks and lines as well as by colours."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.bench.load.compare import Run, latest
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # by Okabe and Ito
_MARKS = "osD^vP*"
_LINES = ("-", "--", ":", "-.")
_SIZE_INCHES = (6.4, 4.4)
DOTS_PER_INCH = 160
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "sightline",  # the same results give the same file
}


def require_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("Plots need matplotlib, which is not installed: pip install 'sightline-vlm[plot]'.")


def draw_plots(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Every plot that the results suffice for, as name.png and name.svg. Returns the files."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    serve = [run for run in runs if run.kind == "serve"]
    plots: list[tuple[str, Callable[[Axes, Sequence[Run]], None], list[Run]]] = [
        ("ttft_by_round", _ttft_by_round, latest([run for run in runs if run.kind == "multiturn"])),
        ("ttft_by_images", _ttft_by_images, latest([run for run in runs if run.kind == "probe"])),
        ("latency_cdf", _latency_cdf, [run for run in latest(serve) if any(run.record.get("ttfts") or ())]),
        ("throughput_latency", _throughput_latency, serve),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw, chosen in plots:
        if not chosen:
            continue
        with matplotlib.rc_context(STYLE):
            figure = Figure(_SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.subplots()
            draw(axes, chosen)
            axes.grid(alpha=0.3, linewidth=0.6)
            figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)  # never over a line
            for ending in ("png", "svg"):
                files.append(folder / f"{name}.{ending}")
                figure.savefig(files[-1], metadata={"Date": None} if ending == "svg" else None)
    return files


def _ttft_by_round(axes: "Axes", runs: Sequence[Run]) -> None:
    _lines_by_resolution(axes, runs, "rounds", "round")
    axes.set_title("Each round adds one image and re-sends the history")
    axes.set_xlabel("round")


def _ttft_by_images(axes: "Axes", runs: Sequence[Run]) -> None:
    _lines_by_resolution(axes, runs, "probes", "images")
    axes.set_title("New images in one request (×: refused or failed)")
    axes.set_xlabel("images in the request")


def _lines_by_resolution(axes: "Axes", runs: Sequence[Run], key: str, axis: str) -> None:
    """A colour per run, a line and a mark per resolution; of one run, a colour per resolution, too. Crosses are failures."""
    from matplotlib.ticker import MaxNLocator

    resolutions = list(dict.fromkeys(one["resolution"] for run in runs for one in run.record[key]))
    unit, divisor = _unit(max((one["ttft_ms"] or 0 for run in runs for one in run.record[key]), default=0))
    for number, run in enumerate(runs):
        for which, resolution in enumerate(resolutions):
            colour = COLOURS[(number if len(runs) > 1 else which) % len(COLOURS)]
            points = [one for one in run.record[key] if one["resolution"] == resolution]
            good = [(one[axis], one["ttft_ms"] / divisor) for one in points if one["ttft_ms"] is not None]
            failed = [one[axis] for one in points if one["ttft_ms"] is None and one.get("error")]
            line, mark = _LINES[which % len(_LINES)], _MARKS[which % len(_MARKS)]
            name = f"{run.label}, {resolution}" if len(runs) > 1 else resolution
            _line(axes, good, line, colour, mark, name)
            for x in failed:
                axes.plot(x, 0, "x", color=colour, markersize=7, clip_on=False)
                axes.annotate(resolution, (x, 0), (0, 6), textcoords="offset points", ha="center", fontsize=7, color=colour)
    axes.set_ylabel(f"time to first token ({unit})")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _latency_cdf(axes: "Axes", runs: Sequence[Run]) -> None:
    """The last run of each label: the share of requests that were at least so fast."""
    longest = max(1000 * max(run.record["latencies"] or [0]) if run.record.get("latencies") else 0 for run in runs)
    unit, divisor = _unit(longest or max(1000 * max(run.record["ttfts"]) for run in runs))
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        for key, name, line in (("ttfts", "first token", "-"), ("latencies", "whole answer", "--")):
            values = np.sort([1000 * value / divisor for value in run.record.get(key) or () if value > 0])
            if len(values):
                shares = 100 * np.arange(1, len(values) + 1) / len(values)
                xs, ys = [values[0], *values], [0, *shares]
                axes.step(xs, ys, line, where="post", color=colour, linewidth=1.5, label=f"{run.label}: {name}")
    axes.set_title(f"Latency of requests, {runs[0].load}" if len({run.load for run in runs}) == 1 else "Latency of requests")
    axes.set_xlabel(f"time since the request was sent ({unit})")
    axes.set_ylabel("requests that had it by then (%)")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 101)


def _throughput_latency(axes: "Axes", runs: Sequence[Run]) -> None:
    """A point per run; the runs of one label, under more and more load, are a curve."""
    unit, divisor = _unit(max(run.number("p99_e2el_ms") or run.number("median_e2el_ms") or 0 for run in runs))
    for number, label in enumerate(dict.fromkeys(run.label for run in runs)):
        colour, mark = COLOURS[number % len(COLOURS)], _MARKS[number % len(_MARKS)]
        for key, name, line in (("median_e2el_ms", "median", "-"), ("p99_e2el_ms", "P99", "--")):
            points = [
                (run.record["request_throughput"], value / divisor)
                for run in sorted(runs, key=_load)  # a server that is overloaded may answer less than before
                if run.label == label and (value := run.number(key)) is not None
            ]
            _line(axes, points, line, colour, mark, f"{label}: {name}")
    axes.set_title("Throughput and latency under growing load")
    axes.set_xlabel("throughput (requests/s)")
    axes.set_ylabel(f"end-to-end latency ({unit})")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _load(run: Run) -> tuple[float, float]:
    """How heavy the load was: by rate, then by how many were allowed at once."""
    rate, most = run.record.get("request_rate"), run.record.get("max_concurrency")
    return (float(rate) if rate is not None else float("inf"), float(most) if most else float("inf"))


def _line(axes: "Axes", points: Sequence[tuple[float, float]], line: str, colour: str, mark: str, name: str) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, line, color=colour, marker=mark, markersize=4.5, linewidth=1.4, label=name)


def _unit(longest_ms: float) -> tuple[str, float]:
    """Seconds where milliseconds would be long numbers; the second value divides milliseconds."""
    return ("s", 1000.0) if longest_ms >= 10_000 else ("ms", 1.0)
