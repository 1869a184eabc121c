"""`python -m benchmarks.tower`: the vision tower alone, by image size, and its small kernels beside their floors."""

import argparse
import sys

from benchmarks.benchmark import Benchmark, Results
from benchmarks.flags import add_floor_flags
from sightline.cli.flags import Parser, add_flags, from_flags
from sightline.config import ModelConfig


def add_options(parser: Parser) -> None:
    parser.add_argument("--shapes", nargs="+", metavar="NAME", help="which sizes (default: all)")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="runs to take medians over (default: 20)")
    parser.add_argument("--definitions", action="store_true", help="also time the torch definitions")
    add_floor_flags(parser)
    add_flags(parser, ModelConfig, without=("quantization",))


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.device_name import device_name
    from benchmarks.measure.tower import SHAPES, as_json, figures, measure_parts, measure_tower, random_tower
    from sightline.errors import ConfigError
    from sightline.models.device import choose_device, choose_dtype
    from sightline.models.locate import locate_model
    from sightline.models.quantise import Quantiser, quantise_tower
    from sightline.models.registry import add_family_modules, read_model_spec

    chosen = from_flags(ModelConfig, arguments)
    names = arguments.shapes or list(SHAPES)
    for name in names:
        if name not in SHAPES:
            raise ConfigError(f"--shapes names {name!r}; the shapes are {', '.join(SHAPES)}.")
    add_family_modules(chosen.family_module)
    spec = read_model_spec(locate_model(chosen.model, chosen.revision, weights=False))
    device = choose_device(chosen.device)
    tower = random_tower(spec, device, choose_dtype(chosen.dtype, spec.dtype, device))
    if chosen.quantize_tower:
        Quantiser("fp8", tower=True).check_device(device)
        quantise_tower(tower)
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
    return Results(device_name(device), as_json(costs, parts), figures(costs, parts, arguments.bandwidth))


BENCHMARK = Benchmark("tower", "the vision tower alone, with random weights, by image size", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
