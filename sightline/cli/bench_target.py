"""Flags that say which server to measure and with what pictures; shared by the benchmarks that load a server."""

import argparse
import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.kept_figures import command, keep
from sightline.cli.keys import key_to_ask_with
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.bench.load.images import ImageKind
    from sightline.bench.load.target import TargetConfig

SIZES = "360p, 720p, 1080p, 2k, 4k or HEIGHTxWIDTH"


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    add_server_flags(parser).add_argument("--label", metavar="TEXT", help="what the results are called in comparisons")
    parser.add_argument("--output", type=Path, metavar="FILE", help="append the results to this file, as a line of JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, alone")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="summary.json to add figures to")


def add_server_flags(parser: argparse.ArgumentParser) -> Any:
    """Where the server is and what it wants; returns the group of flags."""
    group = parser.add_argument_group("the server")
    group.add_argument("--base-url", metavar="URL", help="e.g. https://api.example.com; wins over --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="(default: 8000)")
    group.add_argument("--endpoint", default="/v1/chat/completions", metavar="PATH", help="(default: /v1/chat/completions)")
    group.add_argument("--model", metavar="NAME", help="as the server calls it (default: the first of /v1/models)")
    group.add_argument("--api-key", metavar="KEY", help="(default: the environment's SIGHTLINE_API_KEY or OPENAI_API_KEY)")
    group.add_argument("--header", nargs="*", default=[], metavar="NAME=VALUE", help="further headers of each request")
    group.add_argument("--extra-body", default="{}", metavar="JSON", help="further fields of each request, as a JSON object")
    group.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for one answer (default: 600)")
    return group


def server_words(arguments: argparse.Namespace) -> list[str]:
    """The same flags as a command line has them, for a command that runs another one."""
    words = ["--host", arguments.host, "--port", str(arguments.port), "--endpoint", arguments.endpoint]
    words += ["--extra-body", arguments.extra_body, "--timeout", str(arguments.timeout)]
    for flag, value in (("--base-url", arguments.base_url), ("--model", arguments.model), ("--api-key", arguments.api_key)):
        words += [flag, value] if value is not None else []
    return [*words, "--header", *arguments.header]


def target_config(arguments: argparse.Namespace) -> "TargetConfig":
    from sightline.bench.load.target import TargetConfig

    headers = []
    for text in arguments.header:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"The header {text!r} must have the form NAME=VALUE.")
        headers.append((name, value))
    return TargetConfig(
        base_url=arguments.base_url or f"http://{arguments.host}:{arguments.port}",
        endpoint=arguments.endpoint,
        model=arguments.model,
        api_key=arguments.api_key or key_to_ask_with(),
        headers=tuple(headers),
        timeout_s=arguments.timeout,
    )


def extra_body(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        found = json.loads(arguments.extra_body)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--extra-body {arguments.extra_body!r} is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--extra-body {arguments.extra_body!r} must be a JSON object.")
    return found


def add_seed_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="of texts, pictures and arrivals (default: a new one for each run, so that no cache knows them; it is printed)",
    )


def chosen_seed(arguments: argparse.Namespace) -> int:
    if arguments.seed is None:
        seed = secrets.randbelow(10**6)
        print(f"seed {seed}", file=sys.stderr)
        return seed
    if arguments.seed < 0:
        raise ConfigError(f"The seed is {arguments.seed}, but must be at least 0.")
    return int(arguments.seed)


def add_image_flags(parser: argparse.ArgumentParser, resolutions: bool = False) -> None:
    group = parser.add_argument_group("pictures")
    if resolutions:
        sizes = ["720p", "1080p", "2k"]
        group.add_argument("--resolutions", nargs="+", default=sizes, metavar="SIZE", help=f"{SIZES} (default: 720p 1080p 2k)")
    else:
        ranged = f"{SIZES}, or a range such as 300-1600 for both sides (default: 1080p)"
        group.add_argument("--image-resolution", default="1080p", metavar="SIZE", help=ranged)
    group.add_argument(
        "--image-content",
        choices=("noise", "photo", "random", "blank", "screen"),
        default="photo",
        help="like photographs; random pixels (noise or random), whose files are several times larger; white; screens, drawn "
        "with windows and text (default: photo)",
    )
    group.add_argument("--image-format", choices=("jpeg", "png", "webp"), default="jpeg", help="(default: jpeg)")
    group.add_argument("--image-quality", type=int, default=85, metavar="N", help="of jpeg and webp (default: 85)")


def image_kind(arguments: argparse.Namespace, resolution: str | None = None) -> "ImageKind":
    from sightline.bench.load.images import ImageKind

    return ImageKind(
        resolution=resolution if resolution is not None else arguments.image_resolution,
        content=arguments.image_content,
        format=arguments.image_format,
        quality=arguments.image_quality,
    )


def image_kinds(arguments: argparse.Namespace) -> "tuple[ImageKind, ...]":
    """One per resolution named, each once."""
    return tuple(image_kind(arguments, resolution) for resolution in dict.fromkeys(arguments.resolutions))


def image_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "image_content": arguments.image_content,
        "image_format": arguments.image_format,
        "image_quality": arguments.image_quality,
    }


def keep_record(arguments: argparse.Namespace, record: Mapping[str, Any]) -> None:
    """To the files that --output and --json name, if they name any."""
    from sightline.bench.load.record import append_record

    if arguments.output is not None:
        append_record(arguments.output, record)
    if arguments.json is not None:
        keep(arguments.json, dict(record))


def keep_in_summary(arguments: argparse.Namespace, figures: Mapping[str, float]) -> None:
    """Adds figures of the server to the file that --summary names, if it names one."""
    from sightline.bench.load.server_metrics import device_of
    from sightline.bench.summary import add_to_summary

    if arguments.summary is not None and figures:
        add_to_summary(arguments.summary, figures, command(), device_of(target_config(arguments)))
