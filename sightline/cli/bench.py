"""`sightline bench`: measurements, each printed as a table and kept as JSON."""

from typing import Any

from sightline.cli import (
    bench_api,
    bench_compare,
    bench_few_rows,
    bench_kernels,
    bench_language,
    bench_lookahead,
    bench_multiturn,
    bench_pages,
    bench_pixels,
    bench_probe,
    bench_schedule,
    bench_serve,
    bench_soak,
    bench_stages,
    bench_start,
    bench_targets,
    bench_tower,
)

_MODULES = (
    bench_serve,
    bench_multiturn,
    bench_probe,
    bench_compare,
    bench_targets,
    bench_tower,
    bench_stages,
    bench_pixels,
    bench_language,
    bench_kernels,
    bench_few_rows,
    bench_start,
    bench_lookahead,
    bench_soak,
    bench_pages,
    bench_schedule,
    bench_api,
)


def add_command(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure")
    actions = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True, parser_class=type(parser))
    for module in _MODULES:
        module.add_command(actions)
