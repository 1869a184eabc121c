"""Ranks that hold one model together, under images: what all-reduce takes of the tower's time, and requests a second.

    python -m benchmarks.ranks MODEL --ranks 4 --json FILE [--load-format dummy] [--requests 256] [--concurrency 32]

1. The tower alone under --vision-parallel tensor: a batch with all-reduce and with it left out (its rows are then wrong, its
   time is that of everything else), as CUDA graphs and without. The rows are compared with those of one rank.
2. A server with so many ranks: requests with one JPEG and one token out, for each way to share the tower, with tower graphs and
   without.

Where there are no GPUs the ranks are processes on this CPU: that shows that everything runs and is right, and no time means
anything. The JSON says which it was.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure.device_name import device_name
from sightline.bench.server_process import serving
from sightline.config import MediaConfig, ModelConfig
from sightline.encoder.graphs import TowerGraphs, for_graphs
from sightline.models.device import choose_device, choose_dtype, use_device
from sightline.models.files import ModelFiles, read_model_files
from sightline.models.load import dummy_model, load_model
from sightline.models.model import VisionLanguageModel
from sightline.models.patch_tower import PatchTower
from sightline.models.sharding import shard_model
from sightline.ops.capture import capture_cuda_graphs
from sightline.parallel.group import Group
from sightline.parallel.rank_info import RankInfo
from sightline.types import Grid, ImageHeader

MODES = ("auto", "data", "sequence", "tensor")
_WHAT_CPU_MEANS = "ranks on one CPU: for correctness, no time here means anything"


def main() -> int:
    arguments = read_arguments()
    files = read_model_files(ModelConfig(model=arguments.model), MediaConfig())
    device = choose_device(arguments.device, 0)
    found: dict[str, Any] = {
        "command": " ".join(["python", "-m", "benchmarks.ranks", *sys.argv[1:]]),
        "device": device_name(device),
        "ranks": arguments.ranks,
        "means": "times" if device.type == "cuda" else _WHAT_CPU_MEANS,
        "tower": measure_tower(files, arguments),
    }
    if arguments.requests:
        graphs = (True, False) if device.type == "cuda" else (False,)
        found["server"] = [measure_server(arguments, mode, on) for mode in arguments.modes for on in graphs]
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--load-format", choices=("safetensors", "dummy"), default="safetensors")
    parser.add_argument("--side", default="560x560", help="width and height of each image in pixels")
    parser.add_argument("--batch", type=int, default=8, help="images that the tower runs at once in the first part")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--requests", type=int, default=256, help="of the second part; 0: none")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["tensor", "auto"])
    parser.add_argument("--serve", default="", help="further flags of the server, as one word")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


# ---- The tower alone


def measure_tower(files: ModelFiles, arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the slowest rank."""
    width, height = map(int, arguments.side.split("x"))
    grids = [
        grid for _ in range(arguments.batch) for grid in files.processor.layout(ImageHeader("JPEG", width, height, 1)).grids
    ]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        infos = [RankInfo(rank, arguments.ranks, f"{folder}/meeting") for rank in range(arguments.ranks)]
        processes = [context.Process(target=run_rank, args=(info, results, grids, arguments)) for info in infos]
        for process in processes:
            process.start()
        by_rank = results_of(processes, results)
        for process in processes:
            process.join()
    found: dict[str, Any] = {"images": arguments.batch, "patches": sum(math.prod(grid) for grid in grids)}
    found["largest_difference"] = max(result.pop("difference") for result in by_rank)
    print(f"the tower over {arguments.ranks} ranks, {arguments.batch} images of {arguments.side}")
    for kind in by_rank[0]:
        slowest = max((result[kind] for result in by_rank), key=lambda times: float(times["ms"]))
        found[kind] = slowest | {"share_of_all_reduce": 1 - slowest["ms_without_all_reduce"] / slowest["ms"]}
        print(f"  {kind:10} {slowest['ms']:9.2f} ms, of which all-reduce {100 * found[kind]['share_of_all_reduce']:.1f} %")
    return found


def results_of(processes: Sequence[BaseProcess], results: Any) -> list[dict[str, Any]]:
    """Of each rank; a rank that fails ends them all, for the others would wait for it in a collective."""
    found: list[dict[str, Any]] = []
    while len(found) < len(processes):
        try:
            found.append(results.get(timeout=1.0))
        except queue.Empty:
            failed = [rank for rank, process in enumerate(processes) if process.exitcode]
            if failed:
                for process in processes:
                    process.terminate()
                raise SystemExit(
                    f"Rank {failed[0]} ended with exit code {processes[failed[0]].exitcode}; it says why above."
                ) from None
    return found


def run_rank(info: RankInfo, results: Any, grids: list[Grid], arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    files = read_model_files(ModelConfig(model=arguments.model), MediaConfig())
    device = choose_device(arguments.device, info.rank)
    use_device(device)
    dtype = choose_dtype("auto", files.spec.dtype, device)
    group = Group.join(info, device)
    shard = shard_model(files.spec, info.rank, info.size, split_tower=True)
    model = loaded(files, device, dtype, arguments, shard)
    model.use_group(group, group, shard.vocabulary)
    tower = model.vision
    assert isinstance(tower, PatchTower)
    generator = torch.Generator().manual_seed(7)
    views = [torch.randn(math.prod(grid), tower.patch_width, generator=generator).to(device, dtype) for grid in grids]
    batch = tower.make_batch(views, grids)
    right = loaded(files, device, dtype, arguments, None).encode(batch) if arguments.load_format != "dummy" else None
    rows = model.encode(batch)
    difference = None if right is None else float((rows - right).abs().max() / right.abs().max())
    found: dict[str, Any] = {"difference": -1.0 if difference is None else difference}
    found["plain"] = with_and_without(lambda: model.encode(batch), group, device, arguments.repeats)
    if for_graphs(tower) is not None and group.graph_safe:
        times = {}
        for name, context in (("ms", contextlib.nullcontext()), ("ms_without_all_reduce", without_all_reduce(group))):
            with context:  # a graph holds what was said when it was captured
                graphs = TowerGraphs(tower, capture_cuda_graphs(device), encode=model.encode)
                times[name] = median_ms(lambda graphs=graphs: graphs.run(batch), device, arguments.repeats)  # type: ignore[misc]
        found["graphs"] = times
    results.put(found)
    group.leave()


def loaded(
    files: ModelFiles, device: torch.device, dtype: torch.dtype, arguments: argparse.Namespace, shard: Any
) -> VisionLanguageModel:
    if arguments.load_format == "dummy":
        return dummy_model(files.spec, device, dtype, 64, shard=shard)
    return load_model(files.spec, files.folder, device, dtype, 64, shard=shard)


def with_and_without(run: Callable[[], object], group: Group, device: torch.device, repeats: int) -> dict[str, float]:
    """Turn by turn, so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        times[0].append(median_ms(run, device, 1))
        with without_all_reduce(group):
            times[1].append(median_ms(run, device, 1))
    return {"ms": statistics.median(times[0]), "ms_without_all_reduce": statistics.median(times[1])}


@contextlib.contextmanager
def without_all_reduce(group: Group) -> Iterator[None]:
    """On all ranks alike."""
    group.all_reduce_ = lambda x: x  # type: ignore[method-assign]
    try:
        yield
    finally:
        del group.all_reduce_


def median_ms(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[2:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- A server


def measure_server(arguments: argparse.Namespace, mode: str, graphs: bool) -> dict[str, Any]:
    flags = ["--model", arguments.model, "--served-model-name", "m", "--tensor-parallel-size", str(arguments.ranks)]
    flags += ["--device", arguments.device, "--load-format", arguments.load_format, "--vision-parallel", mode]
    flags += ["--tower-graphs" if graphs else "--no-tower-graphs", *arguments.serve.split()]
    with serving(flags) as server, tempfile.TemporaryDirectory() as folder:
        server.until_ready()
        output = Path(folder) / "load.json"
        bench = ["--host", "127.0.0.1", "--port", server.url().rpartition(":")[2], "--model", "m", "--json", str(output)]
        bench += ["--num-prompts", str(arguments.requests), "--max-concurrency", str(arguments.concurrency)]
        bench += ["--image-resolution", arguments.side, "--output-len", "1", "--ignore-eos", "--no-progress"]
        command = [sys.executable, "-m", "sightline.cli.main", "bench", "serve", *bench]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record = json.loads(output.read_text())
    found = {"vision_parallel": mode, "tower_graphs": graphs, "load": record}
    if record["failed"]:
        raise SystemExit(f"{record['failed']} of {arguments.requests} requests failed with vision_parallel {mode}.")
    speed = f"{record['request_throughput']:.1f} requests/s, time to first token {record['mean_ttft_ms']:.0f} ms"
    print(f"  server, {mode}, tower graphs {'on' if graphs else 'off'}: {speed}")
    return found


if __name__ == "__main__":
    sys.exit(main())
