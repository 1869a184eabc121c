"""Triton kernels without a GPU: the tests of ops again, in a process in which Triton interprets its kernels.

float32 only: products of bfloat16 are wrong in the interpreter. Red when a kernel computes something else than its definition,
on any example of its op.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

OPS_WITH_KERNELS = (
    "vision_rotary merge_embeddings rms_norm add_rms_norm add_rms_norm_rows layer_norm best_token draw_by_id draw_by_score "
    "silu_mul patch_positions add_position_grid resize_bicubic patchify rotate_and_store paged_attention quantise_rows "
    "fp8_block_linear rotary linear linear_silu_mul gather_pages copy_pages repeat_tail join_parts attend_new_tokens "
    "causal_conv gated_delta_rule gated_rms_norm sigmoid_mul quick_gelu resize_bilinear "
    "route_tokens group_pairs expert_gate_up expert_down sum_expert_outputs latent_attention"
).split()
MUST_PASS = {
    "test_every_op.py": [f"definition_and_kernels[{name}-float32-cpu]" for name in OPS_WITH_KERNELS],
    "test_sampling_kernels.py": [
        "a_kernel_draws_what_the_definition_draws[0-cpu]",
        "broken_rows_give_a_token_of_the_vocabulary[cpu]",
    ],
    "test_small_m_timer.py": [
        f"small_m_timer_runs_what_it_names[cpu-{form}-{gated}]"
        for form in ("16-bit", "fp8", "fp8 blocks")
        for gated in (False, True)
    ],
    "test_small_m.py": ["small_m_with_shared_sums[cpu-8]", "small_m_does_not_depend_on_neighbours[cpu]"],
}


pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def run_interpreted(file: Path, chosen: str, must_pass: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", str(file), "-k", chosen]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    for name in must_pass:
        assert f"PASSED tests/{file.parent.name}/{file.name}::test_{name}" in done.stdout


@pytest.mark.parametrize("file", MUST_PASS)
def test_kernels_agree_with_their_definitions(file: str) -> None:
    chosen = "cpu and float32 and (definition_and_kernels or the_best_token) or cpu and (draws or broken or small_m)"
    run_interpreted(Path(__file__).with_name(file), chosen, MUST_PASS[file])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3-vl", "qwen3.5"])
def test_steps_agree_with_definitions(family: str) -> None:
    """Red when a captured step is given to a kernel that does not take it, or what it has beyond the batch spoils a state."""
    file = Path(__file__).parents[1] / "worker" / "test_every_bucket.py"
    run_interpreted(file, f"cpu and {family} and not moe", [f"every_bucket_gives_what_the_definitions_give[cpu-{family}]"])
