"""`benchmarks.pixels`: figures under the keys they are asked for, errors that are those of the pixels. nvidia-nvimgcodec's
CPU side stands for a GPU."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main as benchmark
from benchmarks.measure import formats, pixels
from benchmarks.measure.pixels import CONTENTS, PixelBench, PixelCost, error_files, figures, make_files
from benchmarks.measure.stage_floors import Rates
from benchmarks.measure.stages import StageBench, make_shapes
from sightline.config import Config, ModelConfig
from sightline.encoder.gpu_decode import GpuDecoder
from sightline.encoder.gpu_formats import KINDS
from sightline.encoder.jpeg_library import JpegLibrary, NvImageCodec
from sightline.media import png_pixels
from sightline.media.jpeg_frame import read_frame
from sightline.worker import build

CPU = torch.device("cpu")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvidia.nvimgcodec", reason="needs nvidia-nvimgcodec")

    def libraries(device: torch.device, threads: int) -> tuple[dict[str, JpegLibrary], dict[str, str]]:
        return {"nvimgcodec": NvImageCodec(CPU, threads)}, {"nvjpeg": "not here"}

    monkeypatch.setattr(pixels, "open_decoders", libraries)
    monkeypatch.setattr(pixels, "decoder_of", lambda setting, *_: "cpu" if setting == "cpu" else "nvimgcodec")


def cost(decoder: str, content: str, subsampling: str, total: float) -> PixelCost:
    return PixelCost("20x960x1280", content, subsampling, 1.0, decoder, total, 1.0, 1.0)


def test_keys_of_the_summary() -> None:
    costs = [
        cost("cpu", "photo", "4:2:0", 30.0),
        cost("nvimgcodec", "photo", "4:2:0", 7.0),
        cost("nvjpeg", "photo", "4:2:0", 5.0),
        cost("nvimgcodec", "photo", "4:4:4", 9.0),
        cost("nvimgcodec", "noise", "4:2:0", 12.0),
        cost("nvimgcodec", "colours", "4:2:0", 8.0),
    ]
    found = figures(costs, {"gpu": "nvimgcodec", "auto": "nvimgcodec", "cpu": "cpu"})
    assert found == {
        "pixels_ms.20x960x1280": 7.0,
        "pixels_ms_auto.20x960x1280": 7.0,
        "pixels_ms_cpu.20x960x1280": 30.0,
        "pixels_ms_noise.20x960x1280": 12.0,
        "pixels_ms_auto_noise.20x960x1280": 12.0,
    }
    assert figures(costs, {"gpu": "nvjpeg", "auto": "cpu", "cpu": "cpu"})["pixels_ms.20x960x1280"] == 5.0


@pytest.mark.parametrize("content", CONTENTS)
def test_files(content: str) -> None:
    files = make_files(content, 64, 48, 3, 90, "4:2:0")
    assert len(set(files)) == 3
    frame = read_frame(files[0])
    assert frame is not None and (frame.width, frame.height) == (64, 48) and frame.components[0][1:] == (2, 2)


# Red if errors are of something else than the difference of pixels.
def test_errors_are_those_of_the_pixels(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PixelBench(CPU, torch.float32, pixels.QWEN3_IMAGES, repeats=1)
    try:
        refs = error_files("photo", 64, 48, 90, "4:2:0")
        exact = bench.error("photo", "4:2:0", refs, "nvimgcodec")
        assert exact is not None and exact.largest <= 2
        real = pixels.decode_image

        def other(ref):
            found = real(ref).copy()
            found[0, :, 0] ^= 16  # one row of 48, by 16 in one of three colours
            return found

        monkeypatch.setattr(pixels, "decode_image", other)
        off = bench.error("photo", "4:2:0", refs, "nvimgcodec")
        assert off is not None and 14 <= off.largest <= 18
        if exact.largest == 0:
            assert np.isclose(off.pixels_off, 1 / 48) and np.isclose(off.mean, 16 / 48 / 3)
    finally:
        bench.close()


def test_the_command(on_cpu: None, tiny_checkpoints: dict[str, Path], tmp_path: Path, capsys) -> None:
    report, summary = tmp_path / "pixels.json", tmp_path / "summary.json"
    command = f"pixels --sizes 64x96 --images 3 --repeats 1 --device cpu --model {tiny_checkpoints['qwen3-vl']}"
    assert benchmark([*command.split(), "--json", str(report), "--summary", str(summary)]) == 0
    found = json.loads(report.read_text())
    assert {(one["content"], one["subsampling"], one["decoder"]) for one in found["costs"]} == {
        (content, subsampling, decoder)
        for content in CONTENTS
        for subsampling in ("4:2:0", "4:4:4")
        for decoder in ("cpu", "nvimgcodec")
    }
    assert all(one["total_ms"] > 0 and one["decode_ms"] > 0 for one in found["costs"])
    assert len(found["pixel_errors"]) == len(found["row_errors"]) == 6
    for row in found["row_errors"]:
        assert row["decoding"] < 0.01 and 1e-4 < row["bfloat16"] < 0.5
    assert set(json.loads(summary.read_text())) >= {"pixels_ms.3x64x96", "pixels_ms_auto.3x64x96", "pixels_ms_cpu.3x64x96"}
    assert found["formats"] == {"nvimgcodec": dict.fromkeys(KINDS, 0)}  # on its CPU side
    out = capsys.readouterr().out
    assert "nvjpeg is not there: not here" in out and re.search(r"^TIFF, lzw +nvimgcodec +0 +yes$", out, re.MULTILINE)


# Red if `benchmarks.stages` leaves the decoder of the engine out, or gives an image the patches of another.
def test_stages_use_the_decoder_of_the_engine(
    on_cpu, tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Counting(NvImageCodec):
        def decode(self, files, into):
            calls.append(len(files))
            return super().decode(files, into)

    monkeypatch.setattr(build, "choose_gpu_decoder", lambda *_: GpuDecoder(Counting(CPU, 2), CPU))
    shapes = make_shapes(["64x96", "128"], [3], mixed=True)
    bench = StageBench(Config(model=ModelConfig(model=str(tiny_checkpoints["qwen3-vl"]), device="cpu")), shapes, 1, Rates())
    try:
        found = bench.measure(shapes[0])
        assert found.after.stages["decode"] > 0 and bench.decoder.startswith("nvimgcodec")
        assert calls and set(calls) == {3}
    finally:
        bench.close()


def test_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Red if the decoder that is measured is not the engine's, its stages are left out, or wrong pixels pass."""
    pytest.importorskip("zlib_ng", reason="zlib-ng is not installed")
    kept = tmp_path / "formats.json"
    assert benchmark(["pixels", "--formats", "240x400", "--repeats", "1", "--json", str(kept)]) == 0
    found = {row["name"]: row for row in json.loads(kept.read_text())["formats"]}
    ours = {name for name, row in found.items() if row["is_ours"]}
    assert ours == {name for name in found if name.startswith("PNG")} and len(ours) == 7
    for name in ours:
        assert set(found[name]["stages"]) == {"inflate", "store", "unfilter", "colours"}
        assert 0 < sum(found[name]["stages"].values()) < 2 * found[name]["ours_ms"] + 10
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(found)
    right = png_pixels.png_pixels
    monkeypatch.setattr(png_pixels, "png_pixels", lambda *files: None if right(*files) is None else right(*files) ^ 1)
    with pytest.raises(AssertionError, match="are not Pillow's"):
        formats.measure("240x400", 1)


def test_refusals(capsys) -> None:
    for flags, message in {
        "--images 0": "--images is 0",
        "--quality 101": "--quality is 101",
        "--decoder gpu --sizes 32x32 --images 1": "--decoder is 'gpu', but no library can decode JPEGs on cpu here",
        "--photos .": "there is no JPEG file in it",
        "--sizes big": "The resolution 'big' is unknown",
    }.items():
        assert benchmark(["pixels", "--device", "cpu", *flags.split()]) == 1
        assert message in capsys.readouterr().err
