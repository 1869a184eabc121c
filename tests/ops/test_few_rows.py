"""Products of few rows: sums that several programs share, whoever comes last; the same bits whatever stands beside a row.

On a GPU at the sizes of a model; on a CPU in Triton's interpreter (test_interpreter.py starts it), with smaller ones.
"""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
from ops.interpreter import KERNEL_DEVICES, mend_the_interpreter
from sightline.ops.norms import rms_norm
from sightline.ops.triton import early_start, few_rows
from sightline.ops.triton.few_rows import run_linear, run_linear_silu_mul
from sightline.ops.triton.few_rows_table import LINEAR, LINEAR_SILU_MUL, Tiling, fits_scratch, row_bucket
from sightline.ops.twins import register_twins

mend_the_interpreter()


def draw(device: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """In the dtype that is tested there: the interpreter cannot multiply bfloat16."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.25
    return made.to(device, torch.bfloat16 if device == "cuda" else torch.float32)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


# Red if a part is left out, added twice or read before it is written, or if a column beyond the last is stored.
@pytest.mark.parametrize("split", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_few_rows_with_shared_sums(device: str, split: int) -> None:
    for rows, width, size in ((1, 40, 512), (3, 33, 200), (17, 64, 320), (64, 48, 72)):  # some parts have nothing to add
        x, weight, bias = draw(device, rows, size), draw(device, width, size, seed=1), draw(device, width, seed=2)
        exact = F.linear(x.double(), weight.double(), bias.double())
        for tiling in (Tiling(16, 64, split, 4, 3), Tiling(64, 64, split, 4, 3, weight_left=True)):
            found = run_linear(x, weight, bias, tiling)
            assert error(found, exact) <= 1.1 * error(F.linear(x, weight, bias), exact) + 1e-6
    assert not few_rows._scratch(x.device).arrived.any()


# Red if a row's result depends on how many rows there are, which would make answers depend on their neighbours.
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_few_rows_do_not_know_their_neighbours(device: str) -> None:
    x, weight = draw(device, 16, 512), draw(device, 96, 512, seed=1)
    for tiling in (Tiling(32, 64, 1, 4, 4), Tiling(32, 64, 4, 4, 4), Tiling(64, 64, 4, 4, 4, weight_left=True)):
        together = run_linear(x, weight, None, tiling)
        for rows in (slice(0, 1), slice(5, 8), slice(3, 16)):
            assert torch.equal(run_linear(x[rows].contiguous(), weight, None, tiling), together[rows])


# Red if scratch memory is overrun instead of refused.
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_few_rows_beyond_the_scratch_memory(device: str) -> None:
    x, weight = draw(device, 64, 64), draw(device, 16448, 64, seed=1)
    with pytest.raises(AssertionError, match="needs more scratch memory"):
        run_linear(x, weight, None, Tiling(64, 16, 4, 4, 2))


REAL = {"qkv": (6144, 4096), "out": (4096, 4096), "down": (4096, 12288)}
TILINGS = (
    Tiling(32, 128, 4, 4, 6), Tiling(64, 128, 2, 4, 4), Tiling(16, 256, 1, 4, 4),
    Tiling(64, 128, 2, 4, 4, weight_left=True), Tiling(128, 64, 4, 8, 4, weight_left=True),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 16, 17, 32, 64])
@pytest.mark.parametrize("name", REAL)
def test_real_sizes_are_as_exact_as_the_library(name: str, rows: int) -> None:
    x, weight = draw("cuda", rows, REAL[name][1]), draw("cuda", *REAL[name], seed=1)
    exact = F.linear(x.double(), weight.double())
    for tiling in {*TILINGS, *(tiling for key, tiling in LINEAR.items() if key == (row_bucket(rows), *REAL[name]))}:
        assert error(run_linear(x, weight, None, tiling), exact) <= 1.1 * error(F.linear(x, weight), exact)


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
        *(tiling for key, tiling in LINEAR_SILU_MUL.items() if key[0] >= row_bucket(rows)),  # others have no room for more
    }:
        found = run_linear_silu_mul(x, weight, tiling)
        assert error(found, exact) <= 1.1 * error(library, exact)
        assert (found == library).float().mean() > 0.9  # sums in another order round otherwise now and then


# Red if a graph's replays disturb each other's counters or parts, or if the order in which programs end shows in the result.
@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_replays_give_the_same_bits(rows: int) -> None:
    calls: list[Any] = []
    measured = [tiling for key, tiling in LINEAR.items() if key[0] >= row_bucket(rows)]  # larger tiles have no room for more
    for shape, tiling in itertools.product(REAL.values(), (*TILINGS, *measured)):
        x, weight = draw("cuda", rows, shape[1]), draw("cuda", *shape, seed=1)
        if fits_scratch(rows, shape[0], tiling):
            calls.append((x, weight, None, tiling))
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
    assert not few_rows._scratch(expected[0].device).arrived.any()


# Red if a kernel that starts before a product has ended reads what is not written yet.
@pytest.mark.gpu
def test_what_starts_early_behind_a_product_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    register_twins()
    x, up, down = draw("cuda", 8, 4096), draw("cuda", 24576, 4096, seed=1), draw("cuda", 4096, 12288, seed=2)
    gain = draw("cuda", 4096, seed=3)

    def chain() -> torch.Tensor:
        value = x
        for _ in range(20):
            inner = run_linear_silu_mul(value, up, Tiling(32, 128, 1, 4, 4))
            value = rms_norm(run_linear(inner, down, None, Tiling(64, 128, 2, 4, 4, weight_left=True)), gain, 1e-6)
        return value

    with monkeypatch.context() as patched:
        for module in (early_start, few_rows):
            patched.setattr(module, "starts_early", lambda _: False)
        expected = chain()
    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain()
    for _ in range(20):
        graph.replay()
        assert torch.equal(found, expected)
