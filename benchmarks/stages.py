"""`python -m benchmarks.stages`: where the time to the first token goes, before and after, beside the floor of each stage."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.benchmark import Benchmark, Results
from benchmarks.flags import add_floor_flags, check_positive, floor_rates
from sightline.cli.flags import Parser, add_config_flags, config_from_flags


def add_options(parser: Parser) -> None:
    sizes = ["560", "720p", "1080p", "2k"]
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=sizes,
        metavar="SIZE",
        help="sizes of images: a name such as 1080p, HEIGHTxWIDTH, or the side of a square (default: 560 720p 1080p 2k)",
    )
    parser.add_argument("--images", type=int, nargs="+", default=[1], metavar="N", help="images in a request (default: 1)")
    parser.add_argument("--mixed", action="store_true", help="the images of a request have the sizes in turn")
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="runs to take medians over (default: 10)")
    add_floor_flags(parser)
    parser.add_argument(
        "--upload-bandwidth", type=float, default=63.0, metavar="X", help="host to device, GB/s for the floor (default: 63)"
    )
    parser.add_argument(
        "--decode-rate", type=float, default=9.0, metavar="X", help="billion pixels/s for the floor (default: 9)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG to draw, a stacked bar per request")
    add_config_flags(parser)


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.device_name import device_name
    from benchmarks.measure.stage_plot import draw_stages
    from benchmarks.measure.stage_report import as_json, figures, table
    from benchmarks.measure.stages import StageBench, make_shapes

    check_positive(arguments, "upload_bandwidth", "decode_rate")
    rates = replace(floor_rates(arguments), upload=1e9 * arguments.upload_bandwidth, decode=1e9 * arguments.decode_rate)
    shapes = make_shapes(arguments.sizes, arguments.images, arguments.mixed)
    bench = StageBench(config_from_flags(arguments), shapes, arguments.repeats, rates)
    costs = []
    try:
        print(f"before: torch definitions; after: kernels; medians; JPEGs decoded by {bench.decoder}", flush=True)
        for shape in shapes:
            costs.append(bench.measure(shape))
            print(f"\n{table(costs[-1])}", flush=True)
    finally:
        bench.close()
    spec = bench.files.spec
    model = (
        f"{spec.family}, {spec.patch_tower.depth} + {spec.text.num_layers} layers, {str(bench.dtype).removeprefix('torch.')}"
    )
    model += f", JPEGs decoded by {bench.decoder}"
    if arguments.plot is not None:
        draw_stages(costs, arguments.plot)
    return Results(device_name(bench.device), as_json(costs, rates, model), figures(costs))


BENCHMARK = Benchmark("stages", "time to first token by stage, with torch definitions and with kernels", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
