"""benchmarks.ranks on ranks of this CPU: everything runs, rows are those of one rank, and the JSON says what its times mean."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_ranks_under_images(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder, kept = tiny_checkpoints["qwen3-vl"], tmp_path / "found.json"
    sizes = "--ranks 2 --batch 2 --repeats 2 --side 224x224 --requests 8 --concurrency 4 --modes tensor auto --device cpu"
    serve = "--dtype float32 --kv-cache-gb 0.1"
    command = [sys.executable, "-m", "benchmarks.ranks", str(folder), *sizes.split(), "--serve", serve, "--json", str(kept)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=600)
    found = json.loads(kept.read_text())
    assert found["device"] == "cpu" and "for correctness" in found["means"]
    tower = found["tower"]
    assert 0 <= tower["largest_difference"] <= 1e-4 and tower["patches"] == 2 * 16**2  # 224 pixels are fewer than min_pixels
    assert tower["plain"]["ms"] > 0 and tower["plain"]["share_of_all_reduce"] < 1 and "graphs" not in tower
    assert [one["vision_parallel"] for one in found["server"]] == ["tensor", "auto"]
    for one in found["server"]:
        assert one["load"]["completed"] == 8 and one["load"]["failed"] == 0 and one["load"]["total_output_tokens"] == 8
