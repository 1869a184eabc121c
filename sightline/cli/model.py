"""`sightline model new` writes a checkpoint folder; `sightline model info` says what a folder or Hub id holds."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.models.model import VisionLanguageModel
    from sightline.spec import ModelSpec, TextSpec


def add_command(commands: Any) -> None:
    parser = commands.add_parser("model", help="write or inspect checkpoints")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=type(parser))
    new = actions.add_parser("new", help="write a checkpoint folder with random weights")
    new.add_argument("folder", type=Path)
    new.add_argument("--family", required=True, metavar="NAME", help="such as qwen3-vl; an unknown one lists all")
    new.add_argument("--size", default="tiny", help="tiny, or a published size such as 2b, 8b, 9b (default: tiny)")
    new.add_argument("--no-weights", dest="weights", action="store_false", help="write the JSON files only")
    new.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    new.add_argument("--seed", type=int, default=0, metavar="N")
    new.add_argument("--shard-gb", type=float, default=4.0, metavar="X", help="largest weight file in GB (default: 4)")
    layouts = ("fused", "fused_transposed", "per_expert")
    new.add_argument("--expert-layout", choices=layouts, help="how experts are stored (default: as the family publishes them)")
    _add_family_module(new)
    new.set_defaults(run=run_new, subparser=new)
    info = actions.add_parser("info", help="print a checkpoint's sizes and check that its config is understood")
    info.add_argument("model", help="folder or Hub id")
    info.add_argument("--revision", metavar="TEXT", help="branch, tag or commit of a Hub model")
    info.add_argument(
        "--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs that hold it together, for what memory it takes"
    )
    info.add_argument("--expert-parallel", action="store_true", help="each of these GPUs has some experts whole")
    _add_family_module(info)
    info.set_defaults(run=run_info, subparser=info)


def _add_family_module(parser: argparse.ArgumentParser) -> None:
    help = "module, file or folder with a family beyond those of the package; may be repeated"
    parser.add_argument("--family-module", action="append", default=[], metavar="TEXT", help=help)


def run_new(arguments: argparse.Namespace) -> None:
    import torch

    from sightline.errors import ConfigError
    from sightline.models.create import create_checkpoint
    from sightline.models.registry import add_family_modules

    if arguments.shard_gb <= 0:
        raise ConfigError(f"--shard-gb is {arguments.shard_gb}, but must be above 0.")
    add_family_modules(arguments.family_module)
    create_checkpoint(
        arguments.folder,
        arguments.family,
        arguments.size,
        weights=arguments.weights,
        dtype=getattr(torch, arguments.dtype),
        seed=arguments.seed,
        shard_bytes=int(arguments.shard_gb * 1024**3),
        expert_layout=arguments.expert_layout,
    )
    print(f"Wrote {arguments.family} {arguments.size} to {arguments.folder}.")


def run_info(arguments: argparse.Namespace) -> None:
    from sightline.config import EngineConfig, MediaConfig
    from sightline.models.load import empty_model
    from sightline.models.locate import locate_model
    from sightline.models.memory_outlook import describe, outlook
    from sightline.models.registry import add_family_modules, read_model_spec, read_processor_spec

    add_family_modules(arguments.family_module)
    folder = locate_model(arguments.model, arguments.revision, weights=False)
    spec = read_model_spec(folder)
    model = empty_model(spec)
    image = read_processor_spec(folder, spec, MediaConfig()).image
    counts = [sum(p.numel() for p in part.parameters()) for part in (model.vision, model.text)]
    print(f"family      {spec.family}, {spec.dtype}")
    print(f"parameters  {sum(counts):,} (vision {counts[0]:,}, text {counts[1]:,})")
    text = spec.text
    print(f"vision      {spec.vision.summary}")
    print(f"text        {text.num_layers} layers of {text.hidden_size}, {_describe_attention(text)}")
    if text.experts is not None:
        print(f"experts     {_describe_experts(spec, model)}")
    print(f"fp8         {_describe_fp8(spec, model)}")
    print(f"context     {text.max_position:,} tokens")
    ranks, whole = arguments.tensor_parallel_size, arguments.expert_parallel
    EngineConfig(tensor_parallel_size=ranks, expert_parallel=whole)  # which checks them
    first, second = describe(outlook(spec, ranks, whole))
    print(f"memory      {first}\n            {second}")
    print(f"images      {image.min_pixels:,} to {image.max_pixels:,} pixels, sides in steps of {image.factor}")


def _describe_attention(text: "TextSpec") -> str:
    if text.has_attention:
        return f"{text.attention.num_heads}/{text.attention.num_kv_heads} heads of {text.attention.head_dim}"
    return f"{text.token_bytes(1) // text.num_layers} numbers kept of a token in each"


def _describe_experts(spec: "ModelSpec", model: "VisionLanguageModel") -> str:
    """How many, how wide, and what of the decoder a token passes through."""
    from sightline.models.experts import active_parameters
    from sightline.models.registry import family_named

    experts = spec.text.experts
    assert experts is not None
    sparse = sum(layer.mlp == experts for layer in spec.text.layers)
    shared = {0: "", 1: " and a shared one"}.get(experts.shared, f" and {experts.shared} shared ones")
    layouts = [spec.expert_layout or "", *family_named(spec.family).expert_layouts]
    layout = next(filter(None, layouts), "as its family says")
    return (
        f"{experts.chosen} of {experts.count}{shared}, {experts.intermediate_size} wide, in {sparse} of {spec.text.num_layers} "
        f"layers; {active_parameters(model.text):,} parameters for each token; stored {layout}"
    )


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
