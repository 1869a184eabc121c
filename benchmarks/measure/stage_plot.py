"""A bar per request and way, made of its stages: told apart by hatches as well as by colours, for print."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure.stage_floors import STAGES
from benchmarks.measure.stages import StageCost, StageMilliseconds
from sightline.bench.load.plots import COLOURS, DOTS_PER_INCH, STYLE, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HATCHES = ("", "///")
_WIDTH_INCHES, _INCHES_PER_REQUEST, _INCHES_AROUND = 7.2, 1.15, 1.5
_TTFT, _FLOOR = "measured TTFT", "floor of TTFT"
_LEAST_SHARE_WITH_NUMBER = 0.07  # of the longer bar; narrower parts have no room for one


def draw_stages(costs: Sequence[StageCost], file: Path) -> None:
    """One panel per request, each with its own scale."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    file.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({**STYLE, "hatch.linewidth": 0.6}):
        size = (_WIDTH_INCHES, _INCHES_AROUND + _INCHES_PER_REQUEST * len(costs))
        figure = Figure(size, dpi=DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(costs), 1, squeeze=False)[:, 0]
        for panel, cost in zip(panels, costs, strict=True):
            _panel(panel, cost)
        figure.suptitle("Time to first token by stage: torch definitions (before), kernels (after)", fontsize=11)
        panels[-1].set_xlabel("time (ms)")
        handles, names = panels[0].get_legend_handles_labels()
        by_name = dict(zip(names, handles, strict=True))
        order = [*STAGES.values(), "other", _TTFT, _FLOOR]  # columns of three: pixels, embedding, layers, the rest
        figure.legend([by_name[name] for name in order], order, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
        figure.savefig(file)


def _panel(axes: "Axes", cost: StageCost) -> None:
    longest = 0.0
    for times in (cost.before, cost.after):
        longest = max(longest, times.ttft_ms, sum(times.stages.values()))
    for index, (name, times) in enumerate((("after", cost.after), ("before", cost.before))):
        _bar(axes, index, times, longest, named=name == "after")
    floor = sum(cost.floors.values())
    axes.axvline(floor, color="black", linestyle=":", linewidth=1.2, label=_FLOOR)
    axes.set_yticks((0, 1), ("after", "before"))
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.02 * longest)
    images = f"{cost.images} image{'s' * (cost.images > 1)}"
    axes.set_title(f"{cost.name} ({images}, {cost.load.patches:,} patches, {cost.load.prompt_tokens:,} tokens)", fontsize=9)
    axes.grid(axis="x", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)


def _bar(axes: "Axes", index: int, times: StageMilliseconds, longest: float, named: bool) -> None:
    """Stages and, where they leave something, other; the mark is the measured TTFT."""
    parts = {**times.stages, "other": max(0.0, times.other_ms)}
    start = 0.0
    for number, (stage, width) in enumerate(parts.items()):
        colour = "#BBBBBB" if stage == "other" else COLOURS[number % (len(COLOURS) - 1)]  # not black: numbers are written on it
        hatch = "" if stage == "other" else _HATCHES[number // (len(COLOURS) - 1)]
        name = STAGES.get(stage, stage) if named else None
        axes.barh(index, width, 0.62, start, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, label=name)
        if width >= _LEAST_SHARE_WITH_NUMBER * longest:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
            axes.text(start + width / 2, index, f"{width:.3g}", ha="center", va="center", fontsize=8, bbox=box)
        start += width
    label = _TTFT if named else None
    axes.plot([times.ttft_ms] * 2, [index - 0.4, index + 0.4], color="black", linewidth=1.8, label=label)
