"""Triton twins without a GPU: the test of every op again, in a process in which Triton interprets its kernels.

float32 only: products of bfloat16 are wrong in the interpreter. Red when a kernel computes something else than its definition,
on any example of its op.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = [str(Path(__file__).with_name(name)) for name in ("test_every_op.py", "test_sampling_kernels.py", "test_few_rows.py")]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_agree_with_their_definitions() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", *FILES]
    chosen = ["-k", "cpu and float32 and (definition_and_twins or the_best_token) or cpu and (draws or broken or few_rows)"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command + chosen, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    names = "vision_rotary embed_rows rms_norm add_rms_norm_rows best_token draw_by_id draw_by_score"
    names += " silu_mul patch_places add_position_grid resize_bicubic patchify "
    names += "rotate_and_store paged_attention quantise_rows fp8_block_linear linear linear_silu_mul"
    for name in names.split():
        assert f"PASSED tests/ops/test_every_op.py::test_definition_and_twins[{name}-float32-cpu]" in done.stdout
    for name in ("a_kernel_draws_what_the_definition_draws[0-cpu]", "broken_rows_give_a_token_of_the_vocabulary[cpu]"):
        assert f"PASSED tests/ops/test_sampling_kernels.py::test_{name}" in done.stdout
    for name in ("with_shared_sums[cpu-8]", "do_not_know_their_neighbours[cpu]"):
        assert f"PASSED tests/ops/test_few_rows.py::test_few_rows_{name}" in done.stdout
