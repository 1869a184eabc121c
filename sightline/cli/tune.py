"""`sightline tune`: measures how the small-M GEMMs of a model are best cut on this GPU, and keeps what beats the rule."""

import argparse
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.flags import add_flags, from_flags
from sightline.config import EngineConfig, ModelConfig
from sightline.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sightline.ops.triton.small_m_tilings import Chip, Tiling
    from sightline.ops.tuning.kept_tilings import Machine
    from sightline.ops.tuning.small_m_search import Choice, Matrix

NO_GPU = 2  # exit code
_NOT_ASKED = ("model", "load_format", "quantize_tower", "chat_template", "max_model_len", "seed")


def add_command(commands: Any) -> None:
    parser = commands.add_parser("tune", help="measure kernels at a model's shapes on this GPU")
    parser.add_argument("tuned", metavar="MODEL", help="checkpoint folder or Hub id; its weights are not read")
    add_flags(parser, ModelConfig, _NOT_ASKED)
    group = parser.add_argument_group("What is measured")
    group.add_argument(
        "--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs that will hold it together (default: 1)"
    )
    group.add_argument("--repeats", type=int, default=5, metavar="N", help="runs to take medians over (default: 5)")
    group.add_argument("--json", type=Path, metavar="FILE", help="also write what was measured there")
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 2 where there is nothing to measure on."""
    from sightline.models.device import choose_device
    from sightline.ops.kernels import register_kernels
    from sightline.ops.triton.small_m_tilings import digest_of, hopper_chip, shipped_choices
    from sightline.ops.tuning.kept_tilings import Machine, keep, read_kept, tilings_folder

    _check(arguments)
    config = from_flags(ModelConfig, arguments)
    missing = _why_not(config.device)
    if missing:
        print(f"sightline: {missing}", file=sys.stderr)
        return NO_GPU
    device = choose_device(config.device)
    chip = hopper_chip(device)
    assert chip is not None
    matrices, dtype = _matrices(arguments, config, device)
    if tilings_folder() is None:
        raise ConfigError("There is no cache folder that this user alone can write to, so nothing could be kept.")
    register_kernels()
    machine, shipped = Machine.of(chip), shipped_choices(chip.name)
    before = read_kept(machine, chip)
    if before.problem:
        print(before.problem)
    print(f"{machine.gpu}, driver {machine.driver}, torch {machine.torch}, Triton {machine.triton}\n\n{_HEAD}")
    known = {**shipped, **before.choices}
    found: list[Choice] = []
    for choices in _measure(matrices, known.keys(), device, dtype, arguments.repeats, chip):
        keep(machine, chip, {one.matrix.at(one.bucket): one.tiling for one in choices if one.gains})
        found += choices
    digest = digest_of({**shipped, **read_kept(machine, chip).choices})
    _finish(found, machine, digest, arguments.json)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.repeats < 1:
        raise ConfigError(f"--repeats is {arguments.repeats}, but must be at least 1.")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise ConfigError(f"--json is {str(arguments.json)!r}, but there is no such folder.")
    EngineConfig(tensor_parallel_size=arguments.tensor_parallel_size)  # which checks it


def _why_not(device: str) -> str:
    """Why nothing can be measured on this machine, as a sentence; empty if it can."""
    import torch

    from sightline.models.device import choose_device
    from sightline.ops.triton.small_m_tilings import hopper_chip

    if torch.version.cuda is None or not torch.cuda.is_available():
        return "tune measures kernels on an NVIDIA GPU, and torch sees none on this machine."
    chosen = choose_device(device)
    if chosen.type != "cuda":
        return f"tune measures kernels on an NVIDIA GPU, but --device is {device!r}."
    if importlib.util.find_spec("triton") is None:
        return "tune measures kernels of Triton, which is not installed."
    if hopper_chip(chosen) is None:
        name, capability = torch.cuda.get_device_name(chosen), torch.cuda.get_device_capability(chosen)
        version = ".".join(map(str, capability))
        return f"tune measures kernels for GPUs of compute capability 9, but {name} has {version}: it runs the library's."
    return ""


def _matrices(arguments: argparse.Namespace, config: ModelConfig, device: "torch.device") -> "tuple[list[Matrix], torch.dtype]":
    import torch

    from sightline.models.device import choose_dtype
    from sightline.models.locate import locate_model
    from sightline.models.quantise import Quantiser
    from sightline.models.registry import add_family_modules, read_model_spec
    from sightline.models.small_m_matrices import small_m_matrices

    add_family_modules(config.family_module)
    spec = read_model_spec(locate_model(arguments.tuned, config.revision, weights=False))
    dtype = choose_dtype(config.dtype, spec.dtype, device)
    if dtype == torch.float32:
        raise ConfigError("tune is about 16-bit floats, but --dtype is 'float32'.")
    quantiser = Quantiser(config.quantization, False, spec.fp8)
    quantiser.check_device(device)
    found = small_m_matrices(spec, quantiser, arguments.tensor_parallel_size)
    # Kernels for 8-bit weights take rows of bfloat16 alone.
    return [matrix for matrix in found if matrix.form == "16-bit" or dtype == torch.bfloat16], dtype


def _measure(
    matrices: "Sequence[Matrix]", known: Any, device: "torch.device", dtype: "torch.dtype", repeats: int, chip: "Chip"
) -> "Iterator[list[Choice]]":
    """Those of one matrix after another, as they are printed. `known`: shapes that are not measured."""
    import torch

    from sightline.ops.triton.small_m_tilings import ROW_BUCKETS
    from sightline.ops.tuning import small_m_timer
    from sightline.ops.tuning.small_m_search import tune

    for matrix in matrices:
        buckets = [bucket for bucket in ROW_BUCKETS if matrix.at(bucket) not in known]
        for bucket in ROW_BUCKETS:
            if bucket not in buckets:
                print(f"{_named(matrix)}{bucket:5d}  known: from the package, or kept before")
        if not buckets:
            continue
        found = []
        try:
            timer = small_m_timer.MatrixTimer(matrix, device, dtype, repeats)
            for bucket in buckets:
                choice = tune(matrix, bucket, timer.measure, chip)
                if choice is None:
                    print(f"{_named(matrix)}{bucket:5d}  nothing could be measured")
                    continue
                found.append(choice)
                print(_line(choice), flush=True)
        except torch.OutOfMemoryError:
            shape = f"{matrix.name}, {matrix.size} to {matrix.width}"
            raise ConfigError(f"{device} has too little memory free for {shape}; end what else runs there.") from None
        yield found
        del timer
        torch.cuda.empty_cache()


def _finish(found: "Sequence[Choice]", machine: "Machine", digest: str, report: Path | None) -> None:
    from sightline.ops.tuning.kept_tilings import file_of

    path = file_of(machine)
    if report is not None:
        content = {
            "machine": dataclasses.asdict(machine),
            "file": str(path),
            "hash": digest,
            "measured": [{**dataclasses.asdict(one), "gains": one.gains} for one in found],
        }
        report.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    better = sum(one.gains for one in found)
    print(f"\n{better} of {len(found)} are better than the rule by more than 2 % (*) and kept in {path}.")
    print(f"What starts from now on uses them; all choices for this GPU have the hash {digest}.")


_HEAD = f"{'matrix':10s}{'shape':>16s}  {'format':10s}{'rows':>5s}  {'rule':27s}{'us':>9s}  {'best':27s}{'us':>9s}{'gain':>8s}"


def _named(matrix: "Matrix") -> str:
    shape = f"{matrix.size} to {matrix.width}"
    return f"{matrix.name:10s}{shape:>16s}  {matrix.form:10s}"


def _line(choice: "Choice") -> str:
    """Times are sums over the rows that a bucket is measured at."""
    rule = f"{sum(choice.usual_microseconds.values()):9.2f}" if choice.usual_microseconds else f"{'failed':>9s}"
    gain = f"{100 * (1 - choice.ratio):7.1f}%" + (" *" if choice.gains else "")
    best = sum(choice.microseconds.values())
    return (
        f"{_named(choice.matrix)}{choice.bucket:5d}  {_cut(choice.usual):27s}{rule}  {_cut(choice.tiling):27s}{best:9.2f}{gain}"
    )


def _cut(tiling: "Tiling | None") -> str:
    if tiling is None:
        return "library"
    split = f" / {tiling.split}" if tiling.split > 1 else ""
    left = ", left" if tiling.weight_left else ""
    return f"{tiling.columns} x {tiling.inner}{split}, {tiling.warps}w {tiling.stages}s{left}"
