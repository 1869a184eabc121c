"""`benchmarks.stages`: stages add up to the measured whole, floors follow from sizes, before and after are two ways."""

import json
import math
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.__main__ import main as benchmark
from benchmarks.measure.stage_floors import STAGES, Rates, StageLoad, stage_floors
from benchmarks.measure.stage_plot import draw_stages
from benchmarks.measure.stage_report import figures, rows, table
from benchmarks.measure.stage_spans import Spans
from benchmarks.measure.stages import StageBench, StageCost, make_shapes
from benchmarks.measure.tower import operations
from sightline.config import Config, ModelConfig
from sightline.errors import ConfigError
from sightline.models.create import create_checkpoint
from sightline.models.registry import read_model_spec
from sightline.ops.dispatch import Implementation
from sightline.ops.position_grid import add_position_grid
from sightline.ops.rotary import vision_rotary
from sightline.spec import ModelSpec
from tests.conftest import DENSE

ONLY_ARITHMETIC = Rates(bandwidth=math.inf)


@pytest.fixture(scope="module")
def costs(tiny_checkpoints: dict[str, Path]) -> dict[str, StageCost]:
    """Two images of different sizes, once for each family."""
    found = {}
    for family in DENSE:
        shapes = make_shapes(["64x96", "128"], [2], mixed=True)
        config = Config(model=ModelConfig(model=str(tiny_checkpoints[family]), device="cpu"))
        bench = StageBench(config, shapes, repeats=1, rates=Rates())
        found[family] = bench.measure(shapes[0])
        bench.close()
    return found


@pytest.fixture(scope="module")
def spec_8b(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = tmp_path_factory.mktemp("checkpoints") / "8b"
    create_checkpoint(folder, "qwen3-vl", "8b", weights=False)
    return read_model_spec(folder)


# Red if a stage is not found in a family's tower, if "other" hides or doubles time, or shares are of something else than TTFT.
@pytest.mark.parametrize("family", DENSE)
def test_stages_add_up(costs: dict[str, StageCost], family: str) -> None:
    cost = costs[family]
    for times in (cost.before, cost.after):
        assert list(times.stages) == list(STAGES)
        for stage, milliseconds in times.stages.items():
            assert milliseconds > 0 or (stage == "position_embed" and family == "qwen2.5-vl"), stage
        assert times.ttft_ms > times.stages["prefill"] and times.pixels_ms > 0 and times.vision_ms > 0
        assert sum(times.stages.values()) + times.other_ms == pytest.approx(times.ttft_ms)
    found = rows(cost)
    assert [row.stage for row in found] == [*STAGES, "other", "ttft"]
    *parts, whole = found
    for name in ("before_ms", "after_ms", "share_before", "share_after"):
        assert sum(getattr(row, name) for row in parts) == pytest.approx(getattr(whole, name))
    assert whole.share_before == whole.share_after == 1
    assert whole.floor_ms == pytest.approx(sum(row.floor_ms or 0 for row in parts))
    assert whole.ratio == pytest.approx(whole.after_ms / (whole.floor_ms or 0))
    assert (found[4].floor_ms is None) == (family == "qwen2.5-vl") and found[-2].floor_ms is None
    assert cost.images == 2 and cost.load.pixels == 64 * 96 + 128 * 128 and len(cost.load.grids) == 2


# Red if definitions are not what "before" runs, if kernels are not what "after" runs, or if marks stay behind on an op.
def test_before_and_after_differ_in_kernels(tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def slow(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.05)
        vision_rotary.definition(*args, **kwargs)

    kernels = [Implementation("slow", slow, when=lambda *_, **__: True)]
    monkeypatch.setattr(vision_rotary, "kernels", kernels)
    definitions = vision_rotary.definition, add_position_grid.definition
    shapes = make_shapes(["64x96"], [1], mixed=False)
    bench = StageBench(Config(model=ModelConfig(model=str(tiny_checkpoints["qwen3-vl"]))), shapes, 1, Rates())
    cost = bench.measure(shapes[0])
    bench.close()
    depth = bench.files.spec.patch_tower.depth
    assert calls == 3 * 3 * depth  # two warm-ups and a run, each a pass, a request and the tower in one piece
    assert cost.after.stages["rotary"] > depth * 50 > cost.before.stages["rotary"]
    assert cost.after.ttft_ms > depth * 50 and cost.after.vision_ms > depth * 50
    assert cost.after.stages["blocks"] < depth * 50  # the rotation inside them is counted once
    assert vision_rotary.kernels is kernels and (vision_rotary.definition, add_position_grid.definition) == definitions


# Red if the time of an inner stage stays in the outer one, or a stage that raises is left open.
def test_spans() -> None:
    spans = Spans(torch.device("cpu"))
    start = time.perf_counter()
    with spans.stage("outer"):
        time.sleep(0.02)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), spans.stage("inner"):
                time.sleep(0.03)
                _ = 1 / 0
    whole = 1000 * (time.perf_counter() - start)
    found = spans.milliseconds()
    assert set(found) == {"outer", "inner"} and found["outer"] >= 20 and found["inner"] >= 60
    assert found["outer"] + found["inner"] <= whole


def load_of(grids: list[tuple[int, int, int]], tokens: int, features: int = 768, pixels: int = 0) -> StageLoad:
    return StageLoad(pixels, tuple(grids), tokens, features, itemsize=2)


# Red if a matrix or the attention is miscounted: figures worked out by hand for 720p, 1080p and 2K, 30 tokens of text. Prefill:
# products and attention of 35 layers; of the last one its weights are read, 0.09 ms; the head's are, 0.29 ms.
@pytest.mark.parametrize(
    ("grid", "patch_embed", "linear", "attention", "mergers", "prefill"),
    [
        ((1, 44, 80), 0.016, 3.66, 1.95, 0.36, (16.0 + 0.3) * 35 / 36 + 0.09 + 0.29),
        ((1, 68, 120), 0.036, 8.49, 10.49, 0.83, (36.4 + 1.6) * 35 / 36 + 0.09 + 0.29),
        ((1, 90, 160), 0.065, 14.99, 32.66, 1.46, (63.8 + 4.9) * 35 / 36 + 0.09 + 0.29),
    ],
)
def test_floors_of_8b(
    spec_8b: ModelSpec,
    grid: tuple[int, int, int],
    patch_embed: float,
    linear: float,
    attention: float,
    mergers: float,
    prefill: float,
) -> None:
    tokens = grid[1] * grid[2] // 4 + 30
    found = stage_floors(spec_8b.patch_tower, spec_8b.text, load_of([grid], tokens, features=1536), Rates())
    assert found["patch_embed"] == pytest.approx(patch_embed, abs=0.0006)
    assert found["blocks"] == pytest.approx(linear + attention, abs=0.011)
    assert found["mergers"] == pytest.approx(mergers, rel=0.02)
    assert found["prefill"] == pytest.approx(prefill, rel=0.01)


# Red if the arithmetic of the two benchmarks drifts apart, or a floor does not grow with images and sizes as it must.
def test_floors_scale(spec_8b: ModelSpec) -> None:
    vision, text = spec_8b.patch_tower, spec_8b.text
    grids = [(1, 60, 80)] * 20
    load = load_of(grids, 24_000, pixels=20 * 960 * 1280)
    found = stage_floors(vision, text, load, ONLY_ARITHMETIC)
    tower = sum(found[stage] for stage in ("patch_embed", "blocks", "mergers"))
    assert tower == pytest.approx(1000 * operations(vision, grids) / 790e12)
    pixels, patches = 20 * 960 * 1280, 96_000
    rates = Rates(operations=math.inf, bandwidth=1e12, upload=5e10, decode=2e9)
    found = stage_floors(vision, text, load, rates)
    assert found["decode"] == pytest.approx(1000 * pixels / 2e9)
    assert found["upload"] == pytest.approx(1000 * 3 * pixels / 5e10)
    assert found["resize_patchify"] == pytest.approx(1000 * (3 * pixels + 2 * 768 * patches) / 1e12)
    assert found["position_embed"] == pytest.approx(1000 * 2 * (2 * patches + 48 * 48) * 1152 / 1e12)
    assert found["rotary"] == pytest.approx(1000 * 27 * 8 * patches * 1152 / 1e12)
    one = stage_floors(vision, text, load_of(grids[:1], 24_000), ONLY_ARITHMETIC)
    many = stage_floors(vision, text, load_of(grids, 24_000), ONLY_ARITHMETIC)
    assert many["blocks"] == pytest.approx(20 * one["blocks"]) and many["prefill"] == one["prefill"]
    joined = stage_floors(vision, text, load_of([(1, 60, 1600)], 24_000), ONLY_ARITHMETIC)  # one image as large as the twenty
    extra = 27 * 4 * 1152 * (96_000**2 - 20 * 4_800**2)
    assert joined["blocks"] - many["blocks"] == pytest.approx(1000 * extra / 790e12)
    assert joined["mergers"] == many["mergers"]


# Red if windows are taken for whole frames: pairs are counted one by one.
def test_floor_of_window_attention(tiny_checkpoints: dict[str, Path]) -> None:
    vision = read_model_spec(tiny_checkpoints["qwen2.5-vl"]).patch_tower
    text = read_model_spec(tiny_checkpoints["qwen2.5-vl"]).text
    assert vision.window is not None
    side = vision.window.window_pixels // vision.patch_embed.patch_size
    height, width = side + 6, 2 * side + 2
    windows = [(row // side, column // side) for row, column in product(range(height), range(width))]
    pairs = sum(windows.count(window) for window in windows)
    whole = replace(vision, window=None)
    load = load_of([(1, height, width)], 100)
    in_windows, in_frames = (stage_floors(one, text, load, ONLY_ARITHMETIC)["blocks"] for one in (vision, whole))
    windowed = vision.depth - len(vision.window.full_attention_layers)
    fewer = windowed * 4 * vision.block.hidden_size * ((height * width) ** 2 - pairs)
    assert windowed > 0 and in_frames - in_windows == pytest.approx(1000 * fewer / 790e12)


def test_shapes() -> None:
    both = make_shapes(["560", "1080P", "960x1280"], [1, 20], mixed=False)
    assert [shape.name for shape in both] == ["560", "20x560", "1080p", "20x1080p", "960x1280", "20x960x1280"]
    assert both[0].sizes == ((560, 560),) and both[2].sizes == ((1920, 1080),) and both[5].sizes == ((1280, 960),) * 20
    (mixed,) = make_shapes(["64x96", "128"], [3], mixed=True)
    assert mixed.name == "3x64x96+128" and mixed.sizes == ((96, 64), (128, 128), (96, 64))
    with pytest.raises(ConfigError, match=r"The resolution 'huge' is unknown: give one of .*720p"):
        make_shapes(["560", "huge"], [1], mixed=False)


# Red if a plot cannot show stages that take longer in sequence than the whole, or a table shows them as time left over.
def test_stages_that_overlap(costs: dict[str, StageCost], tmp_path: Path) -> None:
    cost = costs["qwen3-vl"]
    short = replace(cost, after=replace(cost.after, ttft_ms=0.5 * sum(cost.after.stages.values())))
    other = rows(short)[-2]
    assert other.share_after == pytest.approx(-1) and "-100.0 %" in table(short)
    for name, several in (("one", [short]), ("two", [cost, short])):
        draw_stages(several, tmp_path / name / "stages.png")
    with Image.open(tmp_path / "one" / "stages.png") as one, Image.open(tmp_path / "two" / "stages.png") as two:
        assert one.format == "PNG" and one.width == two.width > 1000 and two.height > one.height > 200


def test_figures(costs: dict[str, StageCost]) -> None:
    cost = costs["qwen3-vl"]
    found = figures([replace(cost, name="20x960x1280")])
    assert found["pixels_ms.20x960x1280"] == cost.after.pixels_ms
    assert found["pos_embed_ms.20x960x1280"] == cost.after.stages["position_embed"]
    assert found[f"patch_embed_ms.{cost.load.patches}"] == cost.after.stages["patch_embed"]
    assert found["ttft_stage_ms.ttft.20x960x1280"] == cost.after.ttft_ms
    assert {key.split(".")[1] for key in found if key.startswith("ttft_stage_ms")} == {*STAGES, "other", "ttft"}
    assert not any(key.startswith("pos_embed") for key in figures([costs["qwen2.5-vl"]]))


# The embedded model, from command line to files.
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / "results" / name for name in ("stages.json", "stages.png", "summary.json")}
    flags = ["--json", str(files["stages.json"]), "--plot", str(files["stages.png"]), "--summary", str(files["summary.json"])]
    assert benchmark(["stages", "--sizes", "64x96", "--images", "1", "2", "--repeats", "1", "--rate", "79", *flags]) == 0
    out = capsys.readouterr().out
    assert "64x96: 1 image of 0.01 megapixels" in out and "2x64x96: 2 images" in out
    assert all(out.count(f"\n{name} ") == 2 for name in (*STAGES.values(), "other", "TTFT"))
    kept = json.loads(files["stages.json"].read_text())
    assert kept["benchmark"] == "stages" and kept["rates"]["operations"] == 79e12
    one, two = kept["requests"]
    assert (one["name"], two["name"]) == ("64x96", "2x64x96") and two["patches"] == 2 * one["patches"]
    assert two["prompt_tokens"] > one["prompt_tokens"] and len(two["after"]["ttfts_ms"]) == 1
    stages = {row["stage"]: row for row in two["stages"]}
    assert list(stages) == [*STAGES, "other", "ttft"]
    assert stages["decode"]["ratio"] == pytest.approx(stages["decode"]["after_ms"] / stages["decode"]["floor_ms"])
    summary = json.loads(files["summary.json"].read_text())
    assert summary["ttft_stage_ms.ttft.2x64x96"]["value"] == pytest.approx(stages["ttft"]["after_ms"], abs=1e-4)
    assert summary["pixels_ms.64x96"]["device"] == kept["device"]
    assert Image.open(files["stages.png"]).format == "PNG"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--sizes", "huge"], "The resolution 'huge' is unknown"),
        (["--images", "0"], "--images is 0, but must be at least 1."),
        (["--repeats", "0"], "--repeats is 0, but must be at least 1."),
        (["--upload-bandwidth", "0"], "--upload-bandwidth is 0.0, but must be above 0."),
        (["--sizes", "512", "--images", "20"], "more than the limit of 4095"),
    ],
)
def test_mistakes(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(["stages", *flags]) == 1
    assert sentence in capsys.readouterr().err
