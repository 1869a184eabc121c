"""`sightline model new` writes a checkpoint folder; `sightline model info` says what a folder or Hub id holds."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.models.model import VisionLanguageModel
    from sightline.spec import ModelSpec


def add_command(commands: Any) -> None:
    parser = commands.add_parser("model", help="write or inspect checkpoints")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=type(parser))
    new = actions.add_parser("new", help="write a checkpoint folder with random weights")
    new.add_argument("folder", type=Path)
    new.add_argument("--family", required=True, metavar="NAME", help="qwen3-vl, qwen2.5-vl or glm-4.1v")
    new.add_argument("--size", default="tiny", help="tiny, or a published size such as 2b, 8b, 9b (default: tiny)")
    new.add_argument("--no-weights", dest="weights", action="store_false", help="write the JSON files only")
    new.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    new.add_argument("--seed", type=int, default=0, metavar="N")
    new.add_argument("--shard-gb", type=float, default=4.0, metavar="X", help="largest weight file in GB (default: 4)")
    new.set_defaults(run=run_new, subparser=new)
    info = actions.add_parser("info", help="print a checkpoint's sizes and check that its config is understood")
    info.add_argument("model", help="folder or Hub id")
    info.add_argument("--revision", metavar="TEXT", help="branch, tag or commit of a Hub model")
    info.set_defaults(run=run_info, subparser=info)


def run_new(arguments: argparse.Namespace) -> None:
    import torch

    from sightline.errors import ConfigError
    from sightline.models.create import create_checkpoint

    if arguments.shard_gb <= 0:
        raise ConfigError(f"--shard-gb is {arguments.shard_gb}, but must be above 0.")
    create_checkpoint(
        arguments.folder,
        arguments.family,
        arguments.size,
        weights=arguments.weights,
        dtype=getattr(torch, arguments.dtype),
        seed=arguments.seed,
        shard_bytes=int(arguments.shard_gb * 1024**3),
    )
    print(f"Wrote {arguments.family} {arguments.size} to {arguments.folder}.")


def run_info(arguments: argparse.Namespace) -> None:
    from sightline.config import MediaConfig
    from sightline.models.families import read_model_spec, read_processor_spec
    from sightline.models.load import empty_model
    from sightline.models.locate import locate_model

    folder = locate_model(arguments.model, arguments.revision, weights=False)
    spec = read_model_spec(folder)
    model = empty_model(spec)
    image = read_processor_spec(folder, spec, MediaConfig()).image
    counts = [sum(p.numel() for p in part.parameters()) for part in (model.vision, model.text)]
    print(f"family      {spec.family}, {spec.dtype}")
    print(f"parameters  {sum(counts):,} (vision {counts[0]:,}, text {counts[1]:,})")
    vision, text = spec.vision, spec.text
    print(f"vision      {vision.depth} blocks of {vision.hidden_size}, {vision.num_heads} heads of {vision.head_dim}")
    print(
        f"text        {text.num_layers} layers of {text.hidden_size}, "
        f"{text.num_heads}/{text.num_kv_heads} heads of {text.head_dim}"
    )
    print(f"fp8         {_describe_fp8(spec, model)}")
    print(f"context     {text.max_position:,} tokens")
    print(f"images      {image.min_pixels:,} to {image.max_pixels:,} pixels, sides in steps of {image.factor}")


def _describe_fp8(spec: "ModelSpec", model: "VisionLanguageModel") -> str:
    import torch

    from sightline.models.fp8_summary import could_save

    layers, saved = could_save(model, getattr(torch, spec.dtype))
    gain = f"{layers} linear layers of the language model, {saved / 1024**3:.2f} GiB less than in {spec.dtype}"
    if spec.fp8 is None:
        return f"with --quantization fp8: {gain}"
    inputs = "" if spec.fp8.quantised_inputs else ", weights only"
    scales = "a scale per channel" if spec.fp8.scales == "channel" else "a scale per block of 128 x 128"
    return f"stored so, {scales}{inputs}: {gain}"
