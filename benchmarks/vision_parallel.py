"""How ranks would share a tower's work: bytes that each sends and modelled times, and both counted and timed on CPU ranks.

    python benchmarks/vision_parallel.py MODEL [--ranks 8] [--images 20] [--side 1280x960] [--tflops 480] [--link-gb-s 300]
    python benchmarks/vision_parallel.py MODEL --count [--ranks 2]      with weights; processes on this CPU, over gloo

Times are of one call of the tower. The first form takes a model folder without weights (sightline model new --no-weights).
"""

import argparse
import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from sightline.config import MediaConfig, ModelConfig
from sightline.encoder.vision_parallel import VisionRanks
from sightline.models.files import ModelFiles, read_model_files
from sightline.models.load import load_model
from sightline.models.patch_tower import PatchTower
from sightline.models.sharding import shard_model
from sightline.parallel.costs import LinkCosts, Scheme, TowerCosts, assign
from sightline.parallel.group import Group
from sightline.parallel.rank_info import RankInfo
from sightline.types import Grid, ImageHeader

SCHEMES: tuple[Scheme, ...] = ("data", "sequence", "tensor")


def main() -> int:
    arguments = read_arguments()
    files = read_model_files(ModelConfig(model=arguments.model), MediaConfig())
    grids = grids_of(files, arguments)
    costs = TowerCosts.of(files.spec.patch_tower)
    link = LinkCosts(arguments.tflops * 1e12, arguments.link_gb_s * 1e9, arguments.latency_us * 1e-6)
    frames = [height * width for _, height, width in grids]
    print(f"{len(frames)} images of {frames[0]:,} patches, {arguments.ranks} ranks")
    print(f"{'':10} {'MB sent by a rank':>18} {'modelled ms':>12}")
    results: dict[str, Any] = {}
    for scheme in SCHEMES:
        seconds, sent = modelled(scheme, frames, arguments.ranks, costs, link)
        results[scheme] = {"sent_mb": sent / 1e6, "modelled_ms": 1000 * seconds}
        print(f"{scheme:10} {sent / 1e6:18,.1f} {1000 * seconds:12.2f}")
    mixed = assign(frames, "auto", arguments.ranks, costs, 2, link)
    results["auto"] = {"modelled_ms": 1000 * mixed.seconds, "together": mixed.ranks.count(-1)}
    print(f"{'auto':10} {'':18} {1000 * mixed.seconds:12.2f}   {mixed.ranks.count(-1)} of {len(frames)} by all ranks together")
    if arguments.count:
        results["counted"] = counted(files, grids, arguments.ranks, link)
    if arguments.json:
        command = ["python", "benchmarks/vision_parallel.py", *sys.argv[1:]]
        arguments.json.write_text(json.dumps({"command": " ".join(command), "results": results}, indent=1) + "\n")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--side", default="1280x960", help="width and height in pixels")
    parser.add_argument("--tflops", type=float, default=480, help="what a rank computes, as it does in the tower")
    parser.add_argument("--link-gb-s", type=float, default=300, help="what a rank sends")
    parser.add_argument("--latency-us", type=float, default=20, help="of one exchange")
    parser.add_argument("--count", action="store_true", help="run the tower on CPU ranks, count bytes and take times")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def grids_of(files: ModelFiles, arguments: argparse.Namespace) -> list[Grid]:
    width, height = map(int, arguments.side.split("x"))
    layout = files.processor.layout(ImageHeader("JPEG", width, height, 1))
    return [grid for _ in range(arguments.images) for grid in layout.grids]


def modelled(scheme: Scheme, frames: list[int], ranks: int, costs: TowerCosts, link: LinkCosts) -> tuple[float, float]:
    if scheme == "data":
        return assign(frames, "data", ranks, costs, 2, link).seconds, 0.0
    seconds = sum(costs.seconds(scheme, patches, ranks, 2, link) for patches in frames)
    return seconds, sum(costs.sent_bytes(scheme, patches, ranks, 2) for patches in frames)


def counted(files: ModelFiles, grids: list[Grid], ranks: int, link: LinkCosts) -> dict[str, Any]:
    """In float32, so that bytes are twice those of bfloat16."""
    costs = TowerCosts.of(files.spec.patch_tower)
    frames = [math.prod(grid) for grid in grids]
    found: dict[str, Any] = {}
    print(f"{'on CPUs':10} {'MB counted':>18} {'by formula':>12} {'ms':>10}")
    for scheme in SCHEMES:
        results = run_ranks(ranks, files, grids, scheme, link)
        kind = {"data": "", "sequence": "all_to_all", "tensor": "all_reduce"}[scheme]
        sent = sum(counts[kind] for counts, _ in results) / ranks
        formula = sum(costs.sent_bytes(scheme, patches, ranks, 4) for patches in frames)
        milliseconds = 1000 * max(seconds for _, seconds in results)
        found[scheme] = {"sent_mb": sent / 1e6, "formula_mb": formula / 1e6, "ms": milliseconds}
        print(f"{scheme:10} {sent / 1e6:18,.2f} {formula / 1e6:12,.2f} {milliseconds:10.1f}")
    return found


def run_ranks(ranks: int, files: ModelFiles, grids: list[Grid], scheme: Scheme, link: LinkCosts) -> list[Any]:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        infos = [RankInfo(rank, ranks, f"{folder}/meeting") for rank in range(ranks)]
        processes = [context.Process(target=run_rank, args=(info, results, files, grids, scheme, link)) for info in infos]
        for process in processes:
            process.start()
        found = [results.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
    return found


def run_rank(info: RankInfo, results: Any, files: ModelFiles, grids: list[Grid], scheme: Scheme, link: LinkCosts) -> None:
    torch.set_num_threads(1)
    group = Group.join(info, torch.device("cpu"))
    shard = shard_model(files.spec, info.rank, info.size, split_tower=scheme == "tensor")
    model = load_model(files.spec, files.folder, torch.device("cpu"), torch.float32, 64, shard=shard)
    model.use_group(group, group, shard.vocabulary)
    tower = model.vision
    assert isinstance(tower, PatchTower)

    def run(patches: Any, shapes: Any) -> torch.Tensor:
        return model.encode(tower.make_batch(patches, shapes))

    def run_together(patches: Any, shapes: Any) -> torch.Tensor:
        with tower.together(group):
            return run(patches, shapes)

    views = [torch.randn(math.prod(grid), tower.patch_width) for grid in grids]
    spread = None if scheme == "tensor" else VisionRanks(group, scheme, tower, TowerCosts.of(tower.spec), link)
    for _ in range(2):  # the first warms up
        group.sent.clear()
        began = time.perf_counter()
        if spread is None:
            run(views, grids)
        else:
            spread.encode(spread.share(views, grids), run, run_together)
        seconds = time.perf_counter() - began
    results.put((Counter(group.sent), seconds))
    group.leave()


if __name__ == "__main__":
    sys.exit(main())
