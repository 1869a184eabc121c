"""`sightline bench probe`: how many new pictures one request may have."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sightline.cli.bench_target import (
    add_image_flags,
    add_seed_flag,
    add_target_flags,
    chosen_seed,
    extra_body,
    image_kinds,
    image_settings,
    keep_in_summary,
    keep_record,
    target_config,
)
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.bench.load.probe import Probe, ProbeConfig


def add_command(actions: Any) -> None:
    parser = actions.add_parser("probe", help="how many new pictures one request may have, and their TTFT")
    parser.add_argument("--max-images", type=int, default=64, metavar="N", help="stop there (default: 64)")
    parser.add_argument("--counts", type=int, nargs="+", default=[], metavar="N", help="try exactly these numbers of pictures")
    parser.add_argument(
        "--growing",
        action="store_true",
        help="each request shows the pictures of the one before it and a new one, up to the first"
        " that fails; by default all pictures of a request are new",
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="print only every N-th number of pictures (default: 1)"
    )
    parser.add_argument("--input-len", type=int, default=32, metavar="N", help="text tokens (default: 32)")
    parser.add_argument("--output-len", type=int, default=16, metavar="N", help="most tokens of an answer (default: 16)")
    parser.add_argument("--no-warmup", action="store_true", help="the first request counts even if the server is cold")
    parser.add_argument(
        "--gpu-memory", action="store_true", help="note the memory of this machine's first GPU after each (by nvidia-smi)"
    )
    parser.add_argument(
        "--summary-key", default="probe_images", metavar="NAME", help="in --summary, before the size (default: probe_images)"
    )
    add_image_flags(parser, resolutions=True)
    add_target_flags(parser)
    add_seed_flag(parser)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> int:
    from sightline.bench.load.connection import in_event_loop
    from sightline.bench.load.probe import ProbeConfig, largest, probe_fields, summary_table
    from sightline.bench.load.record import heading

    if arguments.every < 1:
        raise ConfigError(f"--every is {arguments.every}, but must be at least 1.")
    seed = chosen_seed(arguments)
    config = ProbeConfig(
        target=target_config(arguments),
        images=image_kinds(arguments),
        max_images=arguments.max_images,
        counts=tuple(arguments.counts),
        growing=arguments.growing,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        warm_up=not arguments.no_warmup,
        gpu_memory=arguments.gpu_memory,
        seed=seed,
        extra_body=extra_body(arguments),
    )
    print(_line("resolution", "images", _HEADINGS, config.gpu_memory))
    model, probes = in_event_loop(_measure(config, arguments.every))
    most = {kind.resolution: largest(probes, kind.resolution) for kind in config.images}
    print("", summary_table(probes), sep="\n")
    settings = {
        "label": arguments.label,
        "model_id": model,
        "resolutions": list(most),
        "max_images": config.max_images,
        "growing": config.growing,
        "input_len": config.input_len,
        "output_len": config.output_len,
        "seed": config.seed,
        "extra_body": config.extra_body,
        **image_settings(arguments),
    }
    record = {**heading("probe", settings), "largest": most, "probes": [probe_fields(probe) for probe in probes]}
    keep_record(arguments, record)
    keep_in_summary(arguments, {f"{arguments.summary_key}.{resolution}": count for resolution, count in most.items()})
    return 0 if any(most.values()) else 1


async def _measure(config: "ProbeConfig", every: int) -> tuple[str, "list[Probe]"]:
    from sightline.bench.load.connection import connected
    from sightline.bench.load.probe import run_probe
    from sightline.bench.load.serve import words_to_tokens

    def told(probe: "Probe") -> None:
        if probe.error is not None or probe.images == 1 or probe.images % every == 0:
            _print(probe)

    async with connected(config.target) as target:
        return target.model, await run_probe(config, target, await words_to_tokens(target), told)


_HEADINGS = ("TTFT, ms", "tower, ms", "encoded", "prompt tokens", "cached tokens", "GPU memory, MB")


def _print(probe: "Probe") -> None:
    figures = (
        probe.ttft_ms,
        probe.tower_ms,
        probe.encoded_items,
        probe.prompt_tokens,
        probe.cached_tokens,
        probe.gpu_memory_mb,
    )
    cells = ["-" if value is None else f"{value:,.0f}" for value in figures]
    failed = probe.error is not None
    print(
        f"{probe.resolution:10s}  {probe.images:6d}  {probe.error}"
        if failed
        else _line(probe.resolution, str(probe.images), cells, probe.gpu_memory_mb is not None),
        flush=True,
    )


def _line(resolution: str, images: str, cells: Sequence[str], gpu_memory: bool) -> str:
    widths = [max(9, len(heading)) for heading in _HEADINGS[: None if gpu_memory else -1]]
    columns = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False)]
    return "  ".join([f"{resolution:10s}", f"{images:>6s}", *columns])
