"""The host's side of the CUDA engine runs on a machine without a GPU (dry_cuda.py says what that shows and what not)."""

import json
import subprocess
import sys

import pytest
import torch

ALWAYS = (
    "_embed",
    "_norm",
    "_gather",
    "flash attention",
    "_decode_part",
    "_attend_new",
    "_draw_along_ranks",
    "_best_of_part",
    "_cut",
)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the engine's own tests run on it")
@pytest.mark.parametrize(
    ("family", "size", "quantization", "kernel"),
    [
        ("qwen3-vl", "2b", "none", "_join_items"),
        ("qwen3-vl", "8b", "none", "_linear_silu_mul"),
        ("qwen3-vl", "4b", "fp8-kv", "_attend_chunks"),
        ("qwen2.5-vl", "3b", "fp8", "_quantise"),
        ("qwen3.5", "9b", "none", "_delta_token"),
        ("glm-4.1v", "9b", "none", "_rotate_and_store"),
        ("glm-4.6v-flash", "9b", "fp8", "_quantise"),
        ("qwen3-vl-moe", "30b-a3b", "none", "_product"),
        ("glm-4.6v", "108b-a12b", "fp8", "_group"),
        ("step3-vl", "10b", "none", "_quick_gelu"),
    ],
)
def test_an_engine_runs_dry(family: str, size: str, quantization: str, kernel: str) -> None:
    """Red when a kernel is called with arguments it does not have, a tensor of the host reaches it, a graph cannot be captured,
    or a kernel that a family had is no longer chosen."""
    command = [sys.executable, "-m", "tests.worker.dry_cuda", family, size, quantization]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    launches = json.loads(done.stdout.splitlines()[-1])
    assert all(launches.get(name, 0) > 0 for name in (*ALWAYS, kernel)), launches
