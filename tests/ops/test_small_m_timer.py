"""What is timed is the GEMM that is meant, in every format: on a GPU, and on a CPU in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")
from ops.interpreter import KERNEL_DEVICES, mend_the_interpreter
from sightline.ops.kernels import register_kernels
from sightline.ops.triton.small_m_tilings import H200, Form, Tiling, can_run
from sightline.ops.tuning import small_m_timer
from sightline.ops.tuning.small_m_search import Matrix
from sightline.ops.tuning.small_m_timer import MatrixTimer

mend_the_interpreter()
# As large as on a GPU, or so small that they are interpreted soon.
SIDES = {"cpu": (32, 256), "cuda": (4096, 2048)}


# Red if a tiling or the library multiplies something else, with other scales or other halves, or a time is not of a graph.
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("form", ["16-bit", "fp8", "fp8 blocks"])
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_small_m_timer_runs_what_it_names(device: str, form: Form, gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    register_kernels()
    if device == "cpu":  # interpreted rows take long to be put into 8-bit floats
        monkeypatch.setattr(small_m_timer, "_LEAST_COPIES", 1)
        monkeypatch.setattr(small_m_timer, "_MOST_COPIES", 1)
    torch.manual_seed(0)
    matrix = Matrix("any", *SIDES[device], gated, form)
    # The interpreter cannot multiply bfloat16.
    timer = MatrixTimer(matrix, torch.device(device), torch.float32 if device == "cpu" else torch.bfloat16, 1)
    for tiling in (None, Tiling(32, 128, 1, 4, 4), Tiling(64, 128, 1 if gated else 2, 4, 3, weight_left=True)):
        assert can_run(matrix.at(16), tiling, H200)
        cost = timer.measure(3, tiling)
        assert cost.microseconds is not None and cost.error is not None and (cost.rows, cost.tiling) == (3, tiling)
        assert cost.error < (1e-5 if device == "cpu" else 1e-2) and cost.captured == (device == "cuda")
