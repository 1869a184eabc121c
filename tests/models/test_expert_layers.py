"""The layer of experts by itself: against a loop over tokens, and how unequal routing and dummy weights are taken."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from sightline.config import Config, EngineConfig, MediaConfig, ModelConfig
from sightline.errors import ConfigError
from sightline.llm import LLM
from sightline.models.experts import Experts, Router
from sightline.models.sharding import spread_experts
from sightline.ops.experts import route_tokens
from sightline.ops.triton.experts import choose_tile, row_tiles
from sightline.spec import ExpertsSpec

SHAPES = ((24, 40), (32, 32), (32, 16))  # H < I, H = I, H = 2I
KINDS = tuple(itertools.product(("softmax", "sigmoid"), ("none", "plain", "gated")))


def random_experts(spec: ExpertsSpec, size: int) -> Experts:
    layer, generator = Experts(spec, size), torch.Generator().manual_seed(size)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
    return layer.requires_grad_(False)


def one_token(layer: Experts, token: torch.Tensor) -> torch.Tensor:
    """Expert by expert, with nothing of the package."""
    spec, router = layer.router.spec, layer.router

    def expert(number: int) -> torch.Tensor:
        gate, up = (layer.gate_up.weight[number] @ token).chunk(2)
        return layer.down.weight[number] @ (F.silu(gate) * up)

    logits = router.weight @ token
    scores = logits[: spec.count].softmax(0) if spec.scores == "softmax" else logits[: spec.count].sigmoid()
    by = scores if router.bias is None else scores + router.bias
    best = sorted(range(spec.count), key=lambda number: -float(by[number]))[: spec.chosen]
    total = sum(scores[number] for number in best)
    out = sum(scores[number] / total * spec.scale * expert(number) for number in best)
    if spec.shared_expert != "none":
        out = out + (logits[-1].sigmoid() if spec.shared_expert == "gated" else 1) * expert(spec.count)
    assert isinstance(out, torch.Tensor)
    return out


@pytest.mark.parametrize(("size", "inner"), SHAPES)
@pytest.mark.parametrize(("scores", "shared"), KINDS)
def test_layer_is_what_a_loop_over_tokens_gives(scores: str, shared: str, size: int, inner: int) -> None:
    spec = ExpertsSpec(6, 2, inner, scores, 1.5 if scores == "sigmoid" else 1.0, shared)  # type: ignore[arg-type]
    layer = random_experts(spec, size)
    for tokens in (1, 9):
        x = torch.randn(tokens, size, generator=torch.Generator().manual_seed(tokens))
        expected = torch.stack([one_token(layer, token) for token in x])
        torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(layer.add_to(x.clone(), x), x + expected, atol=1e-5, rtol=1e-4)


def test_the_layer_of_qwen3_5_moe() -> None:
    """Its shared expert is gated. Against transformers' own block."""
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

    import oracle  # noqa: F401  (prepares transformers)

    numbers = {"hidden_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
    block = Qwen3_5MoeSparseMoeBlock(Qwen3_5MoeTextConfig(**numbers, shared_expert_intermediate_size=40)).requires_grad_(False)
    layer = random_experts(ExpertsSpec(8, 3, 40, shared_expert="gated"), 48)
    block.gate.weight.copy_(layer.router.weight[:8])
    block.shared_expert_gate.weight.copy_(layer.router.weight[8:])
    block.experts.gate_up_proj.copy_(layer.gate_up.weight[:8])
    block.experts.down_proj.copy_(layer.down.weight[:8])
    gate, up = layer.gate_up.weight[8].chunk(2)
    for own, value in (("gate_proj", gate), ("up_proj", up), ("down_proj", layer.down.weight[8])):
        getattr(block.shared_expert, own).weight.copy_(value)
    x = torch.randn(11, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), block(x[None])[0], atol=1e-5, rtol=1e-4)


# ---- Ties and broken numbers


def test_of_equal_experts_the_first_is_chosen() -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3:6] = 1
    experts, weights = route_tokens(logits, None, 4, "softmax", 1.0, "none")
    assert experts.tolist() == [[0, 1, 2, 3], [3, 4, 5, 0]]
    torch.testing.assert_close(weights.sum(1), torch.ones(2))


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_broken_logits_still_name_experts(scores: str) -> None:
    """Red when an index beyond the experts, or one of them twice, comes of not-a-number: then memory of others is read."""
    logits = torch.zeros(3, 5)
    logits[0], logits[1, 2], logits[2, 1] = float("nan"), float("nan"), -float("inf")
    bias = None if scores == "softmax" else torch.zeros(5)
    experts, _ = route_tokens(logits, bias, 4, scores, 1.0, "none")  # type: ignore[arg-type]
    assert all(len(set(row)) == 4 and set(row) <= set(range(5)) for row in experts.tolist())
    assert 2 not in experts[1].tolist()[:4] and 1 not in experts[2].tolist()[:4]


# ---- Unequal routing: grids and memory are for the worst


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.sampled_from((1, 2, 16, 64)))
def test_no_routing_needs_more_tiles_than_there_are(sizes: list[int], rows: int) -> None:
    """Red when a launch has too few programs for some counts: then pairs are left out, which no uniform test shows."""
    assert sum(-(-size // rows) for size in sizes) <= row_tiles(sum(sizes), len(sizes), rows)


def test_the_most_unequal_counts_fill_every_tile() -> None:
    """Each expert a pair beyond whole tiles. Red when programs are launched that no routing can need."""
    assert row_tiles(3 * 17, 3, 16) == 3 * 2 and row_tiles(2, 8, 16) == 2


def test_tiles_grow_with_the_rows_of_an_expert() -> None:
    for itemsize in (1, 2):
        tiles = [choose_tile(tokens * 8, 128, itemsize) for tokens in (1, 32, 128, 512, 2048, 8192)]
        assert [tile.rows for tile in tiles] == sorted(tile.rows for tile in tiles) and tiles[0].rows == 16
        assert all(tile.stages * tile.inner * (tile.rows + tile.columns) * itemsize < 227 * 1024 for tile in tiles)
        assert itemsize == 2 or all(tile.inner == 128 for tile in tiles), "a step has one scale of a block"


# ---- Dummy weights


def test_dummy_weights_that_spread_tokens(tiny_checkpoints: dict[str, Path]) -> None:
    """Red when the flag does nothing, or all layers send a token alike."""
    small = EngineConfig(kv_cache_gb=0.05, embedding_cache_gb=0.02, warm_up=False, max_num_batched_tokens=512)
    model = ModelConfig(device="cpu", load_format="dummy-uniform", max_model_len=512)
    with LLM(tiny_checkpoints["glm-4.6v"], Config(model, MediaConfig(), small)) as llm:
        routers = [module for module in llm.model.modules() if isinstance(module, Router)]
        x = torch.randn(512, llm.spec.text.hidden_size).to(routers[0].weight.dtype)
        chosen = [router(x)[0][:, : router.spec.chosen] for router in routers]
    spec = routers[0].spec
    for experts in chosen:
        counts = torch.bincount(experts.flatten().long(), minlength=spec.count)
        even = 512 * spec.chosen / spec.count
        assert counts.min() > 0.75 * even and counts.max() < 1.25 * even
    assert not torch.equal(chosen[0], chosen[1])


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize(("scores", "shared"), KINDS)
def test_ranks_with_whole_experts_add_up_to_the_layer(scores: str, shared: str, ranks: int) -> None:
    """Few tokens, of which some ranks have none of the experts, and many. Red when an expert is with two ranks or with none, or
    when what was never computed for a pair of another rank gets into a sum."""
    spec = ExpertsSpec(7, 2, 32, scores, 1.0, shared)  # type: ignore[arg-type]
    layer, parts = random_experts(spec, 32), []
    for rank in range(ranks):
        shard = spread_experts(spec, rank, ranks, 1)
        part, (first, held) = Experts(shard.spec, 32).requires_grad_(False), shard.spec.held
        for parameter, whole in zip(part.router.parameters(), layer.router.parameters(), strict=True):
            parameter.data = whole
        for matrices, of_layer in ((part.gate_up, layer.gate_up), (part.down, layer.down)):
            assert matrices.weight.shape[0] == held
            matrices.weight.data = of_layer.weight[first : first + held].clone()
        parts.append(part)
    for tokens in (1, 2, 40):
        x = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(tokens))
        found = torch.stack([part(x) for part in parts]).sum(0)
        torch.testing.assert_close(found, layer(x), atol=1e-5, rtol=1e-4)


def test_more_ranks_than_experts_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size is 9, but there are only 8 experts to spread"):
        spread_experts(ExpertsSpec(7, 2, 32, shared_expert="plain"), 0, 9, 1)
