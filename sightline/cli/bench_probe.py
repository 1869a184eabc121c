"""`sightline bench probe`: how many new pictures one request may have."""

import argparse
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

if TYPE_CHECKING:
    from sightline.bench.load.probe import Probe, ProbeConfig


def add_command(actions: Any) -> None:
    parser = actions.add_parser("probe", help="how many new pictures one request may have, and their TTFT")
    parser.add_argument("--max-images", type=int, default=64, metavar="N", help="stop there (default: 64)")
    parser.add_argument("--counts", type=int, nargs="+", default=[], metavar="N", help="try exactly these numbers of pictures")
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
    from sightline.bench.load.probe import ProbeConfig, largest, probe_fields
    from sightline.bench.load.record import heading

    seed = chosen_seed(arguments)
    config = ProbeConfig(
        target=target_config(arguments),
        images=image_kinds(arguments),
        max_images=arguments.max_images,
        counts=tuple(arguments.counts),
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        warm_up=not arguments.no_warmup,
        gpu_memory=arguments.gpu_memory,
        seed=seed,
        extra_body=extra_body(arguments),
    )
    print("resolution  images   TTFT, ms  tower, ms  prompt tokens" + ("  GPU memory, MB" if config.gpu_memory else ""))
    model, probes = in_event_loop(_measure(config))
    most = {kind.resolution: largest(probes, kind.resolution) for kind in config.images}
    print()
    for resolution, count in most.items():
        print(
            f"{resolution}: {count} images in one request"
            + (" (as many as were tried)" if _no_error(probes, resolution) else "")
        )
    settings = {
        "label": arguments.label,
        "model_id": model,
        "resolutions": list(most),
        "max_images": config.max_images,
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


async def _measure(config: "ProbeConfig") -> tuple[str, "list[Probe]"]:
    from sightline.bench.load.connection import connected
    from sightline.bench.load.probe import run_probe
    from sightline.bench.load.serve import words_to_tokens

    async with connected(config.target) as target:
        return target.model, await run_probe(config, target, await words_to_tokens(target), _print)


def _print(probe: "Probe") -> None:
    start = f"{probe.resolution:10s}  {probe.images:6d}"
    if probe.error is not None:
        print(f"{start}  {probe.error}", flush=True)
        return
    cells = [_number(probe.ttft_ms, 11), _number(probe.tower_ms, 11), _number(probe.prompt_tokens, 15)]
    cells += [_number(probe.gpu_memory_mb, 16)] if probe.gpu_memory_mb is not None else []
    print(start + "".join(cells), flush=True)


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width},.0f}"


def _no_error(probes: "list[Probe]", resolution: str) -> bool:
    return not any(probe.error for probe in probes if probe.resolution == resolution)
