"""`sightline bench stages`: where the time to the first token goes, before and after, beside the floor of each stage."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from sightline.cli.bench_flags import add_floor_flags, add_json_flag, check_positive, floor_rates
from sightline.cli.flags import add_config_flags, config_from_flags
from sightline.cli.kept_figures import command, keep


def add_command(actions: Any) -> None:
    stages = actions.add_parser("stages", help="time to first token by stage, with torch definitions and with twins")
    sizes = ["560", "720p", "1080p", "2k"]
    stages.add_argument(
        "--sizes",
        nargs="+",
        default=sizes,
        metavar="SIZE",
        help="sizes of images: a name such as 1080p, HEIGHTxWIDTH, or the side of a square (default: 560 720p 1080p 2k)",
    )
    stages.add_argument("--images", type=int, nargs="+", default=[1], metavar="N", help="images in a request (default: 1)")
    stages.add_argument("--mixed", action="store_true", help="the images of a request have the sizes in turn")
    stages.add_argument("--repeats", type=int, default=10, metavar="N", help="runs to take medians over (default: 10)")
    add_floor_flags(stages)
    stages.add_argument(
        "--upload-bandwidth", type=float, default=63.0, metavar="X", help="host to device, GB/s for the floor (default: 63)"
    )
    stages.add_argument(
        "--decode-rate", type=float, default=9.0, metavar="X", help="billion pixels/s for the floor (default: 9)"
    )
    add_json_flag(stages)
    stages.add_argument("--plot", type=Path, metavar="FILE", help="PNG to draw, a stacked bar per request")
    stages.add_argument("--summary", type=Path, metavar="FILE", help="summary.json to add the figures to")
    add_config_flags(stages)
    stages.set_defaults(run=run, subparser=stages)


def run(arguments: argparse.Namespace) -> None:

    from sightline.bench.device_name import device_name
    from sightline.bench.stage_plot import draw_stages
    from sightline.bench.stage_report import as_json, figures, table
    from sightline.bench.stages import StageBench, make_shapes
    from sightline.bench.summary import add_to_summary

    check_positive(arguments, "upload_bandwidth", "decode_rate")
    rates = replace(floor_rates(arguments), upload=1e9 * arguments.upload_bandwidth, decode=1e9 * arguments.decode_rate)
    shapes = make_shapes(arguments.sizes, arguments.images, arguments.mixed)
    bench = StageBench(config_from_flags(arguments), shapes, arguments.repeats, rates)
    costs = []
    try:
        print(f"before: torch definitions; after: twins; medians; JPEGs decoded by {bench.decoder}", flush=True)
        for shape in shapes:
            costs.append(bench.measure(shape))
            print(f"\n{table(costs[-1])}", flush=True)
    finally:
        bench.close()
    about = device_name(bench.device)
    spec = bench.files.spec
    model = f"{spec.family}, {spec.vision.depth} + {spec.text.num_layers} layers, {str(bench.dtype).removeprefix('torch.')}"
    model += f", JPEGs decoded by {bench.decoder}"
    if arguments.json is not None:
        keep(arguments.json, as_json(costs, rates, command(), about, model))
    if arguments.plot is not None:
        draw_stages(costs, arguments.plot)
    if arguments.summary is not None:
        add_to_summary(arguments.summary, figures(costs), command(), about)
