"""Ranks that have whole experts, some each, answer as one rank does."""

from itertools import product
from pathlib import Path

import pytest
import torch

from engine.harness import plain_answer
from models.fp8_checkpoints import write_fp8
from parallel.checkpoints import HEADS, many_heads
from parallel.test_tensor_parallel import requests_of, started
from sightline.config import EngineConfig
from sightline.errors import ConfigError
from sightline.models.experts import Experts
from sightline.models.fp8 import Fp8Weight
from sightline.models.linear import StackedLinear
from sightline.models.load import load_model
from sightline.models.registry import read_model_spec
from sightline.models.sharding import shard_model

FAMILIES = ("qwen3-vl-moe", "qwen3.5-moe", "glm-4.6v")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "ranks"), list(product(FAMILIES, (2, 3, 4))))
def test_ranks_answer_as_one(tmp_path: Path, family: str, ranks: int) -> None:
    """With prefix hits, small chunks and pages for a few. Red when an expert is with two ranks, or is another one's."""
    folder = many_heads(tmp_path / "model", family)
    requests = requests_of(folder) * 2
    run = started(folder, ranks, expert_parallel=True, max_num_batched_tokens=48, kv_cache_gb=0.008)
    try:
        numbers = [run.add(request, tokens=9) for request in requests]
        run.run()
        assert not run.errors
        assert [run.tokens(number) for number in numbers] == [plain_answer(folder, request, 9) for request in requests]
    finally:
        run.engine.close()


@pytest.mark.parametrize("form", [None, "block", "channel"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shares_are_whole_experts(tmp_path: Path, family: str, form: str | None) -> None:
    """8-bit floats keep their scales: no expert is cut. Red when a rank reads another's, or the router is split, too."""
    heads = HEADS[family]
    if family != "qwen3.5-moe":  # which has no dense MLPs; here of whole blocks for all
        heads = heads | {"text_config": heads["text_config"] | {"intermediate_size": 384}}
    folder = many_heads(tmp_path / "model", family, heads)
    if form is not None:
        write_fp8(folder, tmp_path / "stored", tmp_path / "meant", form)  # type: ignore[arg-type]
        folder = tmp_path / "stored"
    spec, cpu = read_model_spec(folder), torch.device("cpu")
    whole = load_model(spec, folder, cpu, torch.float32, 64)
    shards = [shard_model(spec, rank, 3, whole_experts=True) for rank in range(3)]
    ranks = [load_model(spec, folder, cpu, torch.float32, 64, shard=shard) for shard in shards]
    layers = [number for number, layer in enumerate(whole.text.layers) if isinstance(layer.mlp, Experts)]
    assert layers
    for number in layers:
        of_whole, of_ranks = whole.text.layers[number].mlp, [model.text.layers[number].mlp for model in ranks]
        assert all(torch.equal(one.router.weight, of_whole.router.weight) for one in of_ranks)
        for name in ("gate_up", "down"):
            right, found = of_whole.get_submodule(name), [one.get_submodule(name) for one in of_ranks]
            assert torch.equal(torch.cat([numbers_of(one) for one in found]), numbers_of(right)), name
            assert right.is_fp8 <= found[0].is_fp8  # it has no shared expert beside it


def numbers_of(matrices: StackedLinear) -> torch.Tensor:
    if matrices.weight_scale is None:
        return matrices.weight
    return Fp8Weight(matrices.weight, matrices.weight_scale).dequantise()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expert_parallel is on, but tensor_parallel_size is 1"):
        EngineConfig(expert_parallel=True)
    dense = read_model_spec(many_heads(tmp_path / "model", "qwen3-vl", weights=False))
    with pytest.raises(ConfigError, match="expert_parallel is on, but the model has no experts"):
        shard_model(dense, 0, 2, whole_experts=True)
