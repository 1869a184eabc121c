"""`sightline bench tower`: the vision tower alone, by image size, and its small kernels beside their floors."""

import argparse
from typing import Any

from sightline.cli.bench_flags import add_figure_flags, add_floor_flags
from sightline.cli.flags import add_flags, from_flags
from sightline.cli.kept_figures import command, keep
from sightline.config import ModelConfig


def add_command(actions: Any) -> None:
    tower = actions.add_parser("tower", help="the vision tower alone, with random weights, by image size")
    tower.add_argument("--shapes", nargs="+", metavar="NAME", help="which sizes (default: all)")
    tower.add_argument("--repeats", type=int, default=20, metavar="N", help="runs to take medians over (default: 20)")
    tower.add_argument("--definitions", action="store_true", help="also time the torch definitions")
    add_floor_flags(tower)
    add_figure_flags(tower)
    add_flags(tower, ModelConfig, without=("quantization",))
    tower.set_defaults(run=run, subparser=tower)


def run(arguments: argparse.Namespace) -> None:

    from sightline.bench.device_name import device_name
    from sightline.bench.summary import add_to_summary
    from sightline.bench.tower import SHAPES, as_json, figures, measure_parts, measure_tower, random_tower
    from sightline.engine.load import choose_device, choose_dtype
    from sightline.errors import ConfigError
    from sightline.models.families import read_model_spec
    from sightline.models.locate import locate_model
    from sightline.models.quantise import Quantiser, quantise_tower

    chosen = from_flags(ModelConfig, arguments)
    names = arguments.shapes or list(SHAPES)
    for name in names:
        if name not in SHAPES:
            raise ConfigError(f"--shapes names {name!r}; the shapes are {', '.join(SHAPES)}.")
    spec = read_model_spec(locate_model(chosen.model, chosen.revision, weights=False))
    device = choose_device(chosen.device)
    tower = random_tower(spec.vision, device, choose_dtype(chosen.dtype, spec.dtype, device))
    if chosen.quantize_tower:
        Quantiser("fp8", tower=True).check_device(device)
        quantise_tower(tower)
    about = device_name(device)
    print("milliseconds, medians            patches  definitions      eager      graph     launch      floor   graph/floor")
    costs = []
    for name in names:
        cost = measure_tower(tower, name, SHAPES[name], 1e12 * arguments.rate, arguments.repeats, arguments.definitions)
        costs.append(cost)
        shown = [cost.definition_ms, cost.eager_ms, cost.graph_ms, cost.launch_ms, cost.floor_ms]
        numbers = "".join("          -" if value is None else f"{value:11.3f}" for value in shown)
        ratio = (cost.graph_ms or cost.eager_ms) / cost.floor_ms
        print(f"{name:30s}{cost.patches:10d}  {numbers}{ratio:14.2f}", flush=True)
    parts = measure_parts(tower, arguments.repeats)
    print("\nmicroseconds on the device           ours   definition    TB/s")
    for part in parts:
        print(f"{part.name:32s}{part.microseconds:9.1f}{part.definition_microseconds:13.1f}{part.terabytes_per_second:8.2f}")
    if arguments.json is not None:
        keep(arguments.json, as_json(costs, parts, command(), about))
    if arguments.summary is not None:
        add_to_summary(arguments.summary, figures(costs, parts, arguments.bandwidth), command(), about)
