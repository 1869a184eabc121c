"""Figures as shares of their targets, beside what others take: to the left of the line is met, whatever the unit."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure.target_table import TARGETS, TargetFigure
from sightline.bench.load.plots import COLOURS, DOTS_PER_INCH, STYLE, require_matplotlib
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_INCHES, _INCHES_PER_FIGURE, _INCHES_AROUND = 7.6, 0.26, 1.4
_TICKS = (0.1, 0.25, 0.5, 1, 2, 4, 8)
_LEAST = 0.08  # a share that is less is drawn at the edge
_OTHERS = {"SGLang": "s", "vLLM": "D", "transformers": "^"}


def draw_targets(values: Mapping[str, float], device: str, file: Path) -> None:
    """A bar for every target that has a value."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [target for target in TARGETS if target.key in values]
    if not shown:
        raise ConfigError("There is no figure to draw; --summary must name a file that has some.")
    file.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        size = (_WIDTH_INCHES, _INCHES_AROUND + _INCHES_PER_FIGURE * len(shown))
        figure = Figure(size, dpi=DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for index, target in enumerate(reversed(shown)):
            _row(axes, index, target, values[target.key])
        _frame(figure, axes, [_label(target, values[target.key]) for target in reversed(shown)])
        met = sum(target.met(values[target.key]) for target in shown)
        axes.set_title(f"{met} of {len(shown)} targets met on one {device}", fontsize=11)
        figure.savefig(file)


def share(target: TargetFigure, value: float) -> float:
    """Of the target: 1 meets it, less is better, also where more is better."""
    return target.reach / value if target.at_least else value / target.reach


def _label(target: TargetFigure, value: float) -> str:
    return f"{target.key}   " + (f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")


def _row(axes: "Axes", index: int, target: TargetFigure, value: float) -> None:
    own = max(_LEAST, share(target, value))
    met = target.met(value)
    axes.barh(
        index, own, 0.66, color=COLOURS[0] if met else "#DDDDDD", edgecolor="black", linewidth=0.5, hatch="" if met else "///"
    )
    for (name, marker), other in zip(_OTHERS.items(), (target.sglang, target.vllm, target.transformers), strict=True):
        if other is not None:
            axes.plot(share(target, other), index, marker, markersize=5, color="black", markerfacecolor="white", label=name)


def _frame(figure: "Figure", axes: "Axes", labels: list[str]) -> None:
    axes.axvline(1.0, color="black", linewidth=1.2)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST, 10)
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.minorticks_off()
    axes.set_xlabel("share of the target (less is better; hatched: not met)")
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    handles, names = axes.get_legend_handles_labels()
    by_name = dict(zip(names, handles, strict=True))
    if by_name:
        figure.legend(by_name.values(), by_name.keys(), loc="outside lower center", ncols=3, fontsize=9, frameon=False)
