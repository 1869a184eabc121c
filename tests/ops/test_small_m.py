"""Products of a small M: sums that several programs share, whoever comes last; the same bits whatever stands beside a row.

On a GPU at the sizes of a model; on a CPU in Triton's interpreter (test_interpreter.py starts it), with smaller ones.
"""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
from ops.interpreter import KERNEL_DEVICES, mend_the_interpreter
from sightline.ops.kernels import register_kernels
from sightline.ops.linear import SPLIT_SUMS, SPLIT_SUMS_BYTES
from sightline.ops.norms import rms_norm
from sightline.ops.triton import dependent_launch, small_m
from sightline.ops.triton.small_m import run_linear, run_linear_silu_mul
from sightline.ops.triton.small_m_tilings import Tiling, fits_workspace, gated_tiling, linear_tiling
from sightline.ops.workspace import Workspace

mend_the_interpreter()


def draw(device: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """In the dtype that is tested there: the interpreter cannot multiply bfloat16."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.25
    return made.to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def made_workspace(device: str) -> Workspace:
    return Workspace("split sums", SPLIT_SUMS_BYTES, torch.device(device))


def counters(workspace: Workspace) -> torch.Tensor:
    return workspace.take(*SPLIT_SUMS)[0]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


# Red if a part is left out, added twice or read before it is written, or if a column beyond the last is stored.
@pytest.mark.parametrize("split", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_small_m_with_shared_sums(device: str, split: int) -> None:
    workspace = made_workspace(device)
    for rows, width, size in ((1, 40, 512), (3, 33, 200), (17, 64, 320), (64, 48, 72)):  # some parts have nothing to add
        x, weight, bias = draw(device, rows, size), draw(device, width, size, seed=1), draw(device, width, seed=2)
        exact = F.linear(x.double(), weight.double(), bias.double())
        for tiling in (Tiling(16, 64, split, 4, 3), Tiling(64, 64, split, 4, 3, weight_left=True)):
            found = run_linear(x, weight, bias, tiling, workspace)
            assert error(found, exact) <= 1.1 * error(F.linear(x, weight, bias), exact) + 1e-6
    assert not counters(workspace).any()


# Red if a row's result depends on how many rows there are, which would make answers depend on their neighbours.
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_small_m_does_not_depend_on_neighbours(device: str) -> None:
    """In the interpreter numpy multiplies, whose sums over a row differ with the row's place in a tile on some processors: with
    whole numbers all sums are exact, so that only what a row reads of others is seen."""
    workspace = made_workspace(device)
    x, weight = draw(device, 16, 512), draw(device, 96, 512, seed=1)
    if device == "cpu":
        x, weight = (8 * x).round(), (8 * weight).round()
    for tiling in (Tiling(32, 64, 1, 4, 4), Tiling(32, 64, 4, 4, 4), Tiling(64, 64, 4, 4, 4, weight_left=True)):
        together = run_linear(x, weight, None, tiling, workspace)
        for rows in (slice(0, 1), slice(5, 8), slice(3, 16)):
            assert torch.equal(run_linear(x[rows].contiguous(), weight, None, tiling, workspace), together[rows])


# Red if a workspace is overrun instead of refused.
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_small_m_beyond_the_workspace(device: str) -> None:
    x, weight = draw(device, 64, 64), draw(device, 16448, 64, seed=1)
    with pytest.raises(AssertionError, match="needs a larger workspace"):
        run_linear(x, weight, None, Tiling(64, 16, 4, 4, 2), made_workspace(device))
    with pytest.raises(AssertionError, match="split sums, which has 4096"):
        run_linear(x, weight[:64], None, Tiling(64, 16, 4, 4, 2), Workspace("split sums", 4096, torch.device(device)))


REAL = {"qkv": (6144, 4096), "out": (4096, 4096), "down": (4096, 12288)}
TILINGS = (
    Tiling(32, 128, 4, 4, 6), Tiling(64, 128, 2, 4, 4), Tiling(16, 256, 1, 4, 4),
    Tiling(64, 128, 2, 4, 4, weight_left=True), Tiling(128, 64, 4, 8, 4, weight_left=True),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 16, 17, 32, 64])
@pytest.mark.parametrize("name", REAL)
def test_real_sizes_are_as_exact_as_the_library(name: str, rows: int) -> None:
    workspace = made_workspace("cuda")
    x, weight = draw("cuda", rows, REAL[name][1]), draw("cuda", *REAL[name], seed=1)
    exact = F.linear(x.double(), weight.double())
    for tiling in {*TILINGS, linear_tiling(rows, *REAL[name])} - {None}:
        assert error(run_linear(x, weight, None, tiling, workspace), exact) <= 1.1 * error(F.linear(x, weight), exact)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
def test_gate_and_up_are_rounded_as_separate_ops_are(rows: int) -> None:
    x, weight = draw("cuda", rows, 4096), draw("cuda", 24576, 4096, seed=1)
    gate, up = F.linear(x.double(), weight.double()).chunk(2, dim=-1)
    exact = F.silu(gate) * up
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    library = F.silu(gate) * up
    for tiling in {
        Tiling(32, 128, 1, 4, 4),
        Tiling(32, 64, 1, 4, 6),
        Tiling(64, 64, 1, 4, 4, weight_left=True),
        gated_tiling(rows, 12288, 4096),
    } - {None}:
        found = run_linear_silu_mul(x, weight, tiling)
        assert error(found, exact) <= 1.1 * error(library, exact)
        assert (found == library).float().mean() > 0.9  # sums in another order round otherwise now and then


# Red if a graph's replays disturb each other's counters or parts, or if the order in which programs end shows in the result.
@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_replays_give_the_same_bits(rows: int) -> None:
    calls: list[Any] = []
    workspace = made_workspace("cuda")
    chosen = {linear_tiling(rows, *shape) for shape in REAL.values()} - {None}
    for shape, tiling in itertools.product(REAL.values(), {*TILINGS, *chosen}):
        x, weight = draw("cuda", rows, shape[1]), draw("cuda", *shape, seed=1)
        if fits_workspace(rows, shape[0], tiling):
            calls.append((x, weight, None, tiling, workspace))
    expected = [run_linear(*call) for call in calls]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [run_linear(*call) for call in calls]
    for _ in range(100):
        for one in found:
            one.zero_()
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not counters(workspace).any()


# Red if a kernel that starts before a product has ended reads what is not written yet.
@pytest.mark.gpu
def test_a_dependent_launch_behind_a_gemm_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    register_kernels()
    x, up, down = draw("cuda", 8, 4096), draw("cuda", 24576, 4096, seed=1), draw("cuda", 4096, 12288, seed=2)
    gain, workspace = draw("cuda", 4096, seed=3), made_workspace("cuda")

    def chain() -> torch.Tensor:
        value = x
        for _ in range(20):
            inner = run_linear_silu_mul(value, up, Tiling(32, 128, 1, 4, 4))
            product = run_linear(inner, down, None, Tiling(64, 128, 2, 4, 4, weight_left=True), workspace)
            value = rms_norm(product, gain, 1e-6)
        return value

    with monkeypatch.context() as patched:
        for module in (dependent_launch, small_m):
            patched.setattr(module, "has_dependent_launch", lambda _: False)
        expected = chain()
    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain()
    for _ in range(20):
        graph.replay()
        assert torch.equal(found, expected)
