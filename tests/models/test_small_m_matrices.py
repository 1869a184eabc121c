"""Shapes of small-M GEMMs from a model's description: those that its decoder really multiplies, in each format and share."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ALL_FAMILIES, FAMILIES
from sightline import LLM, SamplingParams
from sightline.models import experts, linear, small_m_matrices
from sightline.models.create import create_checkpoint
from sightline.models.quantise import Quantiser
from sightline.models.registry import family_named, read_model_spec
from sightline.models.small_m_matrices import small_m_matrices as matrices_of
from sightline.ops.triton.small_m_tilings import H200, ROW_BUCKETS, can_run, chosen_tiling
from sightline.spec import Fp8Spec, ModelSpec

Multiplied = set[tuple[int, int, bool, str]]  # width, size, gated, form
BLOCKS = Fp8Spec("block", "_scale_inv", quantised_inputs=True)


def spec_of(folder: Path, family: str, size: str) -> ModelSpec:
    create_checkpoint(folder / size, family, size, weights=False)
    return read_model_spec(folder / size)


def watched(patch: pytest.MonkeyPatch) -> Multiplied:
    """What modules multiply with from now on."""
    seen: Multiplied = set()

    def watch(module: Any, name: str) -> None:
        op, gated = getattr(module, name), "silu_mul" in name

        def called(x: torch.Tensor, weight: torch.Tensor, *others: Any) -> Any:
            form = "16-bit" if not name.startswith("fp8") else ("fp8" if others[0].ndim == 1 else "fp8 blocks")
            seen.add((len(weight) // 2 if gated else len(weight), weight.shape[1], gated, form))
            return op(x, weight, *others)

        patch.setattr(module, name, called)

    for name in ("linear", "linear_silu_mul", "fp8_linear", "fp8_block_linear", "fp8_linear_silu_mul"):
        watch(linear, name)
    watch(experts, "linear")
    return seen


# Red if a family's decoder multiplies with a matrix that is not found, or one is found that it never multiplies with so.
@pytest.mark.parametrize("quantization", [None, "fp8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_are_those_that_are_multiplied(
    tiny_checkpoints: dict[str, Path], family: str, quantization: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoints[family]
    with LLM(folder, device="cpu", quantization=quantization) as llm:
        seen = watched(monkeypatch)
        llm.chat([{"role": "user", "content": "Hello."}], SamplingParams(max_tokens=2, ignore_eos=True))
    spec = read_model_spec(folder)
    monkeypatch.setattr(small_m_matrices, "SMALL_WEIGHT", 0)
    found = {(one.width, one.size, one.gated, one.form) for one in matrices_of(spec, Quantiser(quantization, False, spec.fp8))}
    assert found == seen and any(one[3] == "fp8" for one in found) == (quantization == "fp8")


# Red if a size is left out of what is measured, a head or a router is taken for one in 8-bit floats, or a shape has no choice.
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_every_published_size_has_shapes(tmp_path: Path, family: str) -> None:
    for size in family_named(family).sizes:
        spec = spec_of(tmp_path, family, size)
        found = matrices_of(dataclasses.replace(spec, fp8=BLOCKS), Quantiser(stored=BLOCKS))
        if size == "tiny":
            assert not found  # nothing fills a chip
            continue
        names = {matrix.name: matrix for matrix in found}
        text = spec.text
        head = names["lm_head"]
        assert (head.width, head.size, head.form) == (text.vocab_size, text.hidden_size, "16-bit")
        assert {"qkv", "out"} <= names.keys() and ("gate_up" in names) == ("down" in names)
        assert all((one.form == "fp8 blocks") == (one.name not in ("lm_head", "router")) for one in found)
        assert all(one.gated == (one.name == "gate_up") for one in found)
        for matrix in found:
            for bucket in ROW_BUCKETS:
                assert can_run(matrix.at(bucket), chosen_tiling(matrix.at(bucket), H200), H200)


# Red if a share of several GPUs is not what a rank multiplies with, or only the first one's is found.
def test_shares_of_ranks(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "qwen3-vl", "8b")

    def shapes(ranks: int, quantiser: Quantiser, spec: ModelSpec = spec) -> Multiplied:
        return {(one.width, one.size, one.gated, one.form) for one in matrices_of(spec, quantiser, ranks)}

    assert shapes(2, Quantiser()) == {
        (3072, 4096, False, "16-bit"), (4096, 2048, False, "16-bit"), (6144, 4096, True, "16-bit"),
        (4096, 6144, False, "16-bit"), (75968, 4096, False, "16-bit"),
    }  # fmt: skip
    assert shapes(2, Quantiser("fp8")) == {
        (*shape, "16-bit" if shape[0] == 75968 else "fp8") for *shape, _ in shapes(2, Quantiser())
    }
    uneven = {(width, size) for width, size, *_ in shapes(3, Quantiser())}
    assert {(4096, 12 * 128), (4096, 8 * 128)} <= uneven  # of 32 heads, with 8 of keys and values: 12, 12 and 8
    blocks = {size for width, size, _, form in shapes(3, Quantiser(stored=BLOCKS), dataclasses.replace(spec, fp8=BLOCKS))}
    assert all(size % 128 == 0 for size in blocks)


# Red if what a checkpoint stores is taken for what will run.
def test_the_format_is_that_of_the_weights(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "qwen3-vl", "2b")

    def forms(wanted: Any, stored: Fp8Spec | None) -> set[str]:
        return {one.form for one in matrices_of(dataclasses.replace(spec, fp8=stored), Quantiser(wanted, False, stored))}

    channel = Fp8Spec("channel", "_scale", quantised_inputs=True)
    assert forms(None, None) == forms("none", BLOCKS) == {"16-bit"}
    assert forms(None, dataclasses.replace(BLOCKS, quantised_inputs=False)) == {"16-bit"}
    assert forms("fp8", None) == forms("fp8", BLOCKS) == forms(None, channel) == {"16-bit", "fp8"}
    assert forms(None, BLOCKS) == {"16-bit", "fp8 blocks"}
