"""`sightline bench`: any OpenAI-compatible server measured from outside. Those of parts are in a clone's `benchmarks/`."""

from typing import Any

from sightline.cli import bench_compare, bench_multiturn, bench_probe, bench_serve, bench_soak


def add_command(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure a server")
    actions = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True, parser_class=type(parser))
    for module in (bench_serve, bench_multiturn, bench_probe, bench_compare, bench_soak):
        module.add_command(actions)
