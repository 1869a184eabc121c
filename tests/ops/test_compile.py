"""Kernels compile for the GPU they are written for, though there is none here."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sightline

PROGRAM = Path(__file__).with_name("compile_kernels.py")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_every_kernel_compiles_for_an_h200() -> None:
    """Red when a kernel has a type, a loop or a layout that Triton's interpreter takes and its compiler does not, or needs
    more shared memory than there is."""
    path = os.pathsep.join([str(Path(sightline.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    names = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"add_rms_norm_rows", "embed_rows", "best_token", "draw_by_id", "draw_by_score", "rotate_and_store"} <= names
    assert {"linear", "linear_silu_mul"} <= names
