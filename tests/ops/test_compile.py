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
    assert {"add_rms_norm_rows", "merge_embeddings", "best_token", "draw_by_id", "draw_by_score", "rotate_and_store"} <= names
    assert {"linear", "linear_silu_mul", "repeat_tail", "join_parts", "attend_new_tokens"} <= names
    assert {"route_tokens", "group_pairs", "expert_gate_up", "expert_down", "sum_expert_outputs", "latent_attention"} <= names


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_new_sizes_compile_nothing() -> None:
    """Red when a kernel is compiled for the size of an image or of a batch: then an unusual one holds up all answers."""
    roots = [str(Path(sightline.__file__).parents[1]), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    program = Path(__file__).with_name("count_kernels.py")
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    counts = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    # Graphs of decoding have a kernel for each power of two of parts that keys are split into: none is captured later.
    assert counts.pop("_attend_new") <= 7 and counts.pop("_join") <= 6
    assert counts.pop("_delta_token") == 2  # of few sequences and of many
    # Experts: few tokens or many; both GEMMs for each tile of choose_tile, the smallest without lists, too.
    assert counts.pop("_route") == 2 and counts.pop("_group") == 2 and counts.pop("_product") == 10
    assert {
        "_conv",
        "_conv_one",
        "_keep_last",
        "_prepare",
        "_scan",
        "_decode_part",
        "_resize_pass",
        "_cut",
        "_positions",
        "_add_positions",
        "_rotate",
        "_rotate_halves",
        "_gather",
        "_repeat_tail",
        "_join_tail",
    } <= set(counts)
    assert set(counts.values()) == {1}
