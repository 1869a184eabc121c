"""`python -m benchmarks.pixels`: JPEG files to patches on the device, by decoder, and how far each decoder is from Pillow."""

import argparse
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser, add_flags, config_from_flags
from sightline.config import Config, ModelConfig

if TYPE_CHECKING:
    from benchmarks.measure.decoder_rows import RowError
    from benchmarks.measure.pixels import PixelBench, PixelCost, PixelError
    from sightline.types import MediaRef

    Kinds = dict[tuple[str, str], list[MediaRef]]  # by content and subsampling


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["960x1280"],
        metavar="SIZE",
        help="a name such as 1080p, or HEIGHTxWIDTH (default: 960x1280)",
    )
    parser.add_argument("--images", type=int, nargs="+", default=[20], metavar="N", help="files decoded together (default: 20)")
    parser.add_argument("--quality", type=int, default=90, metavar="N", help="of the JPEG files (default: 90)")
    parser.add_argument("--decoder", choices=("gpu", "cpu", "auto"), help="only what this setting means here (default: all)")
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="JPEG files to compare the decoders' pixels on as well")
    parser.add_argument(
        "--formats",
        nargs="?",
        const="1080p",
        metavar="SIZE",
        help="only what decoding a screen of this size costs one core, by format: PNG, WebP, JPEG (without a size: 1080p)",
    )
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="runs to take medians over (default: 20)")
    add_flags(parser, ModelConfig)


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.device_name import device_name
    from benchmarks.measure.pixels import QWEN3_IMAGES, PixelBench, as_json, figures, photographs
    from sightline.bench.load.images import parse_resolution
    from sightline.errors import ConfigError
    from sightline.models.device import choose_device, choose_dtype
    from sightline.models.files import read_model_files

    for count in arguments.images:
        if count < 1:
            raise ConfigError(f"--images is {count}, but must be at least 1.")
    if arguments.formats is not None:
        return _formats(arguments)
    if not 1 <= arguments.quality <= 100:
        raise ConfigError(f"--quality is {arguments.quality}, but must be from 1 to 100.")
    config = config_from_flags(arguments)
    processor = read_model_files(config.model, config.media).processor if config.model.model else QWEN3_IMAGES
    device = choose_device(config.model.device)
    dtype = choose_dtype(config.model.dtype, "bfloat16", device)
    sizes = {name.lower(): parse_resolution(name) for name in arguments.sizes}
    photos = photographs(arguments.photos) if arguments.photos is not None else []
    bench = PixelBench(device, dtype, processor, arguments.repeats)
    try:
        for name, reason in bench.missing.items():
            print(f"{name} is not there: {reason}")
        print(f"settings: {', '.join(f'{setting} is {decoder}' for setting, decoder in bench.settings.items())}")
        decoders = bench.decoders
        if arguments.decoder is not None:
            chosen = bench.settings[arguments.decoder]
            if chosen is None:
                raise ConfigError(f"--decoder is {arguments.decoder!r}, but no library can decode JPEGs on {device.type} here.")
            decoders = [chosen]
        costs = _costs(bench, sizes, arguments.images, arguments.quality, decoders)
        kinds = _kinds(*next(iter(sizes.values())), arguments.quality, photos)
        on_gpu = [decoder for decoder in decoders if decoder != "cpu"]
        errors = _errors(bench, kinds, on_gpu) if on_gpu else []
        _print_formats(bench)
        rows = _rows(bench, config, kinds, on_gpu) if config.model.model and on_gpu else []
    finally:
        bench.close()
    return Results(device_name(device), as_json(bench, costs, errors, rows), figures(costs, bench.settings))


def _formats(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.formats import as_json, measure, table
    from sightline.errors import ConfigError

    if arguments.repeats < 1:
        raise ConfigError(f"--repeats is {arguments.repeats}, but must be at least 1.")
    costs = measure(arguments.formats, arguments.repeats)
    print(table(costs))
    return Results("cpu", as_json(costs, arguments.formats, arguments.repeats))


def _costs(
    bench: "PixelBench", sizes: dict[str, tuple[int, int]], counts: list[int], quality: int, decoders: list[str]
) -> "list[PixelCost]":
    from benchmarks.measure.pixels import CONTENTS, SUBSAMPLINGS, CannotDecode, make_files

    print("\nmilliseconds, medians                       MB   decoder                  total    decode    launch (of the host)")
    costs = []
    runs = itertools.product(sizes.items(), counts, CONTENTS, SUBSAMPLINGS)
    for (size, (width, height)), count, content, subsampling in runs:
        shape = size if count == 1 else f"{count}x{size}"
        files = make_files(content, width, height, count, quality, subsampling)
        for decoder in decoders:
            try:
                cost = bench.measure(shape, content, subsampling, files, decoder)
            except CannotDecode as error:
                print(f"{shape:18s}{content:10s}{subsampling:8s}             {error}")
                continue
            costs.append(cost)
            print(
                f"{shape:18s}{content:10s}{subsampling:8s}{cost.megabytes:10.2f}   {decoder:22s}"
                f"{cost.total_ms:8.2f}{cost.decode_ms:10.2f}{cost.preprocess_ms:10.2f}",
                flush=True,
            )
    return costs


def _kinds(width: int, height: int, quality: int, photos: "list[MediaRef]") -> "Kinds":
    """Files to compare decoders on."""
    from benchmarks.measure.pixels import CONTENTS, SUBSAMPLINGS, error_files

    found = {
        (content, subsampling): error_files(content, width, height, quality, subsampling)
        for content, subsampling in itertools.product(CONTENTS, SUBSAMPLINGS)
    }
    return found | ({("files", "as they are"): photos} if photos else {})


def _errors(bench: "PixelBench", kinds: "Kinds", decoders: list[str]) -> "list[PixelError]":
    print("\nagainst Pillow                 decoder                pixels that differ      mean   largest")
    errors = []
    for (content, subsampling), refs in kinds.items():
        for decoder in decoders:
            error = bench.error(content, subsampling, refs, decoder)
            if error is not None:
                errors.append(error)
                print(
                    f"{content:18s}{subsampling:13s}{decoder:22s}{100 * error.pixels_off:17.2f} %"
                    f"{error.mean:12.4f}{error.largest:8d}"
                )
    return errors


def _print_formats(bench: "PixelBench") -> None:
    """Where other formats than JPEG are decoded."""
    if bench.formats:
        print("\nother formats                  decoder                largest difference     decoded there")
    for decoder, kinds in bench.formats.items():
        for kind, difference in kinds.items():
            shown = "cannot decode it" if difference is None else str(difference)
            print(f"{kind:31s}{decoder:22s}{shown:>19s}     {'yes' if difference == 0 else 'no, on the CPU'}")


def _rows(bench: "PixelBench", config: Config, kinds: "Kinds", decoders: list[str]) -> "list[RowError]":
    from benchmarks.measure.decoder_rows import RowBench
    from benchmarks.measure.pixels import CannotDecode

    row_bench = RowBench(config, bench)
    print("\nrows of the tower, relative    decoder                from the decoder   from bfloat16")
    rows = []
    for (content, subsampling), refs in kinds.items():
        items = bench.items([ref.data for ref in refs[:2]])
        for decoder in decoders:
            try:
                row = row_bench.measure(content, subsampling, items, decoder)
            except CannotDecode as error:
                print(f"{content:18s}{subsampling:13s}{error}")
                continue
            rows.append(row)
            print(f"{content:18s}{subsampling:13s}{decoder:22s}{row.decoding:17.2e}{row.bfloat16:16.2e}")
    return rows


BENCHMARK = Benchmark("pixels", "JPEG files to patches on the device, by decoder, and its error in pixels", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
