"""An expert layer from routing to sum, by tokens, beside its floor: `python -m benchmarks.moe_layer --json FILE [...]`.

Layers of random weights take turns, so that none is found in the cache of the chip; tokens go to all experts alike, or with
--skewed all to the same. On a GPU each call is one of many in a CUDA graph, elsewhere a plain call. The floor is the larger of
what must be read and written (of experts those that are chosen) and of the arithmetic.

--sweep also times tiles of the two grouped GEMMs, which is what `choose_tile` in sightline/ops/triton/experts.py is chosen by.
--parts times each op alone.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sightline.models.experts import Experts, Router, route_uniformly
from sightline.models.fp8 import Fp8Weight
from sightline.ops.experts import expert_down, expert_gate_up, group_pairs, needs_lists, route_tokens, sum_expert_outputs
from sightline.ops.kernels import register_kernels
from sightline.spec import ExpertsSpec

# (hidden size, experts): the published models
MODELS = {
    "30b": (2048, ExpertsSpec(128, 8, 768)),
    "235b": (4096, ExpertsSpec(128, 8, 1536)),
    "glm": (4096, ExpertsSpec(128, 8, 1408, "sigmoid", 1.0, "plain")),
    "qwen3.5-35b": (2048, ExpertsSpec(256, 8, 512, shared_expert="gated")),
    "qwen3.5-122b": (3072, ExpertsSpec(256, 8, 1024, shared_expert="gated")),
    "qwen3.5-397b": (4096, ExpertsSpec(512, 10, 1024, shared_expert="gated")),
    "tiny": (64, ExpertsSpec(8, 2, 32, shared_expert="gated")),
}
_BANDWIDTH, _OPERATIONS = 4.3e12, 790e12  # of an H200, measured; products of 8-bit floats are twice as fast
_LAUNCHES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="30b")
    parser.add_argument("--weights", choices=("bf16", "channel", "block"), default="bf16", help="channel and block: fp8")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 32, 128, 512, 2048, 8192])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--skewed", action="store_true", help="all tokens go to the same experts")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with torch.inference_mode():
        found = measure(arguments)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    register_kernels()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, spec = MODELS[arguments.model]
    layers = make_layers(spec, size, arguments, device)
    rows = []
    for tokens in arguments.tokens:
        x = torch.randn(tokens, size, device=device, dtype=torch.bfloat16)
        runs = [lambda layer=layer, x=x: layer(x) for layer in layers]
        row: dict[str, Any] = {
            "tokens": tokens,
            "us": timed(runs, arguments.repeats),
            "floor_us": floor(spec, size, tokens, arguments),
        }
        if arguments.parts:
            row["parts_us"] = {name: timed(calls, arguments.repeats) for name, calls in parts(layers, x)}
        if arguments.sweep:
            row["tiles_us"] = sweep(layers, x, arguments.repeats)
        rows.append(row)
        print(json.dumps(row), flush=True)
    prefix = "moe_layer_us" if arguments.model == "30b" else f"moe_layer_us.{arguments.model}"
    suffix = ("" if arguments.weights == "bf16" else f".{arguments.weights}") + (".skewed" if arguments.skewed else "")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    about = {
        "model": arguments.model,
        "weights": arguments.weights,
        "skewed": arguments.skewed,
        "device": name,
        "torch": torch.__version__,
    }
    return {**about, "rows": rows, "figures": {f"{prefix}{suffix}.{row['tokens']}": row["us"] for row in rows}}


def make_layers(spec: ExpertsSpec, size: int, arguments: argparse.Namespace, device: torch.device) -> list[Experts]:
    with torch.device("meta"):
        layers = [Experts(spec, size) for _ in range(arguments.layers)]
    for layer in layers:
        for name, meta in list(layer.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            module, dtype = layer.get_submodule(owner), torch.float32 if leaf == "bias" else torch.bfloat16
            value = torch.empty(meta.shape, dtype=dtype, device=device).normal_(0, meta.shape[-1] ** -0.5)
            if arguments.weights != "bf16" and meta.ndim == 3:
                module.set_fp8(Fp8Weight.of(value, blocks=arguments.weights == "block"))  # type: ignore[operator]
            else:
                setattr(module, leaf, nn.Parameter(value, requires_grad=False))
    route_uniformly(nn.ModuleList(layers), max(arguments.tokens), seed=0)
    for layer in layers if arguments.skewed else ():
        layer.router.instead = layer.router.instead[:1].expand(max(arguments.tokens), -1).contiguous()  # type: ignore[index]
    return layers


def floor(spec: ExpertsSpec, size: int, tokens: int, arguments: argparse.Namespace) -> float:
    """Microseconds."""
    itemsize, speed = (2, 1) if arguments.weights == "bf16" else (1, 2)
    each = 3 * size * spec.intermediate_size
    touched = spec.per_token if arguments.skewed else spec.touched(tokens)
    moved = touched * each * itemsize + 2 * size * spec.count + 2 * 3 * tokens * size
    return 1e6 * max(moved / _BANDWIDTH, 2.0 * tokens * spec.per_token * each / (speed * _OPERATIONS))


def parts(layers: Sequence[Experts], x: torch.Tensor) -> Iterator[tuple[str, list[Callable[[], object]]]]:
    """The ops of a layer, one by one."""
    made: dict[str, list[Callable[[], object]]] = {}
    for layer in layers:
        router: Router = layer.router
        spec, logits = router.spec, router.logits(x)
        chosen = router.instead[: len(x)] if router.instead is not None else logits
        experts, weights = router(x)
        gate_up, down = layer.gate_up, layer.down
        count = len(down.weight)
        lists = group_pairs(experts, count) if needs_lists(experts, count) else None
        between = expert_gate_up(x, experts, lists, gate_up.weight, gate_up.weight_scale)
        outputs = expert_down(between, experts, lists, down.weight, down.weight_scale, weights)
        calls: dict[str, Callable[[], object]] = {
            "router": partial(router.logits, x),
            "route": partial(route_tokens, chosen, router.bias, spec.chosen, spec.scores, spec.scale, spec.shared_expert),
            "gate_up": partial(expert_gate_up, x, experts, lists, gate_up.weight, gate_up.weight_scale),
            "down": partial(expert_down, between, experts, lists, down.weight, down.weight_scale, weights),
            "sum": partial(sum_expert_outputs, outputs, None),
        }
        if lists is not None:
            calls["group"] = partial(group_pairs, experts, count)
        for name, call in calls.items():
            made.setdefault(name, []).append(call)
    yield from made.items()


def sweep(layers: Sequence[Experts], x: torch.Tensor, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of each grouped GEMM by its tile, the fastest first; those that do not fit are left out."""
    from sightline.ops.triton import experts as kernels

    chosen_tile, found = kernels.choose_tile, {}
    itemsize = layers[0].down.weight.itemsize
    inner = (64, 128) if itemsize == 2 else (128,)
    shapes = itertools.product((16, 32, 64, 128), (32, 64, 128, 256), inner, (4, 8), (3, 4, 5))
    tiles = [kernels.Tile(*shape) for shape in shapes if _is_sensible(kernels.Tile(*shape), itemsize)]
    try:
        for name in ("gate_up", "down"):
            times = {}
            for tile in tiles:
                kernels.choose_tile = _always(tile)
                calls = dict(parts(layers, x))[name]
                try:
                    times[f"{tile.rows}x{tile.columns}x{tile.inner} w{tile.warps} s{tile.stages}"] = timed(calls, repeats)
                except Exception as error:  # Triton's own kinds, by version: too much shared memory, too many registers
                    if x.device.type != "cuda" or "out of resource" not in str(error):
                        raise
            found[name] = dict(sorted(times.items(), key=lambda item: item[1]))
    finally:
        kernels.choose_tile = chosen_tile
    return found


def _always(tile: Any) -> Any:
    return lambda pairs, count, itemsize: replace(tile)


def _is_sensible(tile: Any, itemsize: int) -> bool:
    shared = tile.stages * tile.inner * (tile.rows + tile.columns) * itemsize
    return bool(shared <= 220 * 1024 and 1024 <= tile.rows * tile.columns <= 128 * 256 and (tile.warps == 4 or tile.rows >= 64))


def timed(calls: Sequence[Callable[[], object]], repeats: int) -> float:
    """Microseconds of one call, the median of `repeats` rounds."""
    if not torch.cuda.is_available():
        calls[0]()
        return statistics.median(_seconds(calls[0]) for _ in range(repeats)) * 1e6
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(_LAUNCHES * len(calls)):
            calls[index % len(calls)]()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / (_LAUNCHES * len(calls)))
    return float(statistics.median(times))


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
