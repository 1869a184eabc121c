"""The decoder leaves its adds to the norms that follow; here they are done one after another, where they are written down."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices
from sightline.models.layers import GatedMLP
from sightline.models.load import load_model
from sightline.models.model import VisionLanguageModel
from sightline.models.registry import read_model_spec
from sightline.ops.attention import paged_attention
from sightline.ops.sequences import PagedSequences
from sightline.worker.caches import allocate_caches

TOKENS, CPU = 6, torch.device("cpu")


def batch_of(
    vision_embeddings: torch.Tensor | None, embedding_index: torch.Tensor | None, token_ids: torch.Tensor
) -> ForwardBatch:
    return ForwardBatch(
        token_ids=token_ids,
        positions=torch.arange(TOKENS, dtype=torch.int32).expand(3, -1).contiguous(),
        slots=torch.arange(TOKENS),
        sequences=PagedSequences(
            page_table=torch.zeros(1, 1, dtype=torch.int32),
            query_starts=torch.tensor([0, TOKENS], dtype=torch.int32),
            context_lengths=torch.tensor([TOKENS], dtype=torch.int32),
            query_lengths_host=(TOKENS,),
            context_lengths_host=(TOKENS,),
        ),
        vision_embeddings=vision_embeddings,
        embedding_index=embedding_index,
        logits_indices=logits_indices_of([1, 4, 5]),
    )


def logits_indices_of(tokens: list[int]) -> LogitsIndices:
    return LogitsIndices(
        index=torch.tensor(tokens, dtype=torch.int64),
        sequence=torch.zeros(len(tokens), dtype=torch.int64),
        query_starts=torch.arange(len(tokens) + 1, dtype=torch.int32),
        context_lengths=torch.tensor(tokens, dtype=torch.int32) + 1,
        context_lengths_host=tuple(token + 1 for token in tokens),
    )


def one_add_after_another(
    model: VisionLanguageModel, batch: ForwardBatch, caches: list[LayerCache], rows: torch.Tensor, index: list[int]
) -> torch.Tensor:
    text, size = model.text, model.spec.text.hidden_size
    vision = [token for token, row in enumerate(index) if row >= 0]
    parts = rows[[index[token] for token in vision]].split(size, dim=1)
    hidden = text.embed_tokens(batch.token_ids.clamp(max=10))
    hidden[vision] = parts[0]
    for number, (layer, cache) in enumerate(zip(text.layers, caches, strict=True)):
        hidden = sum(layer(hidden, None, None, batch, cache, deepstack_follows=True, logits_indices=None))
        if number + 1 < len(parts):
            hidden[vision] += parts[number + 1]
    return F.linear(text.norm(hidden)[batch.logits_indices.index], text.lm_head.weight)


@pytest.mark.parametrize("small_m", [0, 64], ids=["in place", "pending"])
@pytest.mark.parametrize("deepstack_features", ["none", "one", "as many as layers"])
def test_deepstack_features_are_added_after_their_layers(
    tiny_checkpoints: dict[str, Path], deepstack_features: str, small_m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a deepstack feature comes a layer early or late, goes to another token, or is lost after the last layer."""
    monkeypatch.setattr("sightline.models.decoder.SMALL_M", small_m)
    folder = tiny_checkpoints["qwen3-vl"]
    model = load_model(read_model_spec(folder), folder, CPU, torch.float32, 64)
    text = model.spec.text
    count = {"none": 0, "one": 1, "as many as layers": text.num_layers}[deepstack_features]
    torch.manual_seed(1)
    rows, index = torch.randn(4, (1 + count) * text.hidden_size), [-1, 2, 0, -1, 3, -1]
    token_ids = torch.tensor([3, 10**9, 10**9, 5, 10**9, 7])  # what stands in an image's place is not looked up
    batch = batch_of(rows, torch.tensor(index), token_ids)
    with torch.inference_mode():
        caches, expected_caches = (allocate_caches(text.layers, 1, 8, 0, CPU, torch.float32) for _ in range(2))
        found = model.text(batch, caches)
        expected = one_add_after_another(model, batch, expected_caches, rows, index)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for cache, other in zip(caches, expected_caches, strict=True):
        torch.testing.assert_close(cache.keys.flatten(0, 1)[:TOKENS], other.keys.flatten(0, 1)[:TOKENS], atol=1e-5, rtol=1e-5)
    assert text.num_layers > 1


@pytest.mark.parametrize("logits_indices", [[], [5], [1, 4]])
def test_the_last_layer_computes_only_what_is_read(
    tiny_checkpoints: dict[str, Path], logits_indices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when the last layer multiplies rows that no logits come from, lets them attend, or stores no keys for them."""
    folder = tiny_checkpoints["qwen3-vl"]
    model = load_model(read_model_spec(folder), folder, CPU, torch.float32, 64)
    text, ids = model.spec.text, torch.tensor([3, 4, 5, 6, 7, 8])
    rows: list[int] = []
    queries: list[int] = []
    for name in ("forward", "add_to"):
        called = getattr(GatedMLP, name)
        monkeypatch.setattr(GatedMLP, name, lambda self, *x, called=called: rows.append(len(x[-1])) or called(self, *x))
    attend = paged_attention.definition
    counted = replace(paged_attention.reference, run=lambda q, *rest: queries.append(len(q)) or attend(q, *rest))
    monkeypatch.setattr(paged_attention, "reference", counted)
    with torch.inference_mode():
        caches, whole_caches = (allocate_caches(text.layers, 1, 8, 0, CPU, torch.float32) for _ in range(2))
        found = model.text(replace(batch_of(None, None, ids), logits_indices=logits_indices_of(logits_indices)), caches)
        assert rows == [TOKENS] * (text.num_layers - 1) + [len(logits_indices)] * bool(logits_indices)
        assert queries == rows
        whole = model.text(
            replace(batch_of(None, None, ids), logits_indices=logits_indices_of(list(range(TOKENS)))), whole_caches
        )
    torch.testing.assert_close(found, whole[logits_indices], atol=1e-5, rtol=1e-5)
    assert torch.equal(caches[-1].keys.flatten(0, 1)[:TOKENS], whole_caches[-1].keys.flatten(0, 1)[:TOKENS])
    assert torch.equal(caches[-1].values.flatten(0, 1)[:TOKENS], whole_caches[-1].values.flatten(0, 1)[:TOKENS])


def test_an_index_without_rows_is_the_same_as_none(tiny_checkpoints: dict[str, Path]) -> None:
    """A captured step always takes an index. Red when tokens of text take anything from an image that is not theirs."""
    folder = tiny_checkpoints["qwen3-vl"]
    model = load_model(read_model_spec(folder), folder, CPU, torch.float32, 64)
    text, ids = model.spec.text, torch.tensor([3, 4, 5, 6, 7, 8])
    rows = torch.full((2, model.spec.vision.embedding_width), 1e6)
    with torch.inference_mode():
        plain = model.text(batch_of(None, None, ids), allocate_caches(text.layers, 1, 8, 0, CPU, torch.float32))
        recorded = batch_of(rows, torch.full((TOKENS,), -1), ids)
        assert torch.equal(model.text(recorded, allocate_caches(text.layers, 1, 8, 0, CPU, torch.float32)), plain)
