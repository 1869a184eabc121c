"""Which steps gather their keys is decided once: where attention gathers no graph runs, and where none gathers graphs do."""

import importlib
import sys
import types
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from sightline.ops.attention import paged_attention, segment_attention
from sightline.ops.paged_cache import PagedCache
from sightline.ops.pages import gathered_bytes
from sightline.ops.sequences import PagedSequences
from sightline.ops.workspace import Workspace
from sightline.worker.step_graphs import StepGraphs, buckets

PAGE, KV_HEADS, HEADS = 16, 1, 2
STEPS = (
    # new tokens and contexts of each sequence
    ((2000, 1, 1), (261_920, 1, 1)),  # fits into what is gathered in multiples of 80 keys, not of 128
    ((2000, 1, 1), (262_100, 1, 1)),  # in neither
    ((2000,), (262_144,)),  # in multiples of 128 alone
    ((2000,), (200_000,)),
    ((2000,), (2_000,)),
    ((1600,), (30_000,)),
)


@pytest.fixture
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that calls flash-attn-4, with nothing behind it."""
    name = "sightline.ops.external.flash_attention_4"
    for package in ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))

    def attend(q: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return q

    monkeypatch.setattr(sys.modules["flash_attn.cute"], "flash_attn_varlen_func", attend, raising=False)
    monkeypatch.setattr(sys.modules["flash_attn.cute.interface"], "_flash_attn_fwd", attend, raising=False)
    for op in (paged_attention, segment_attention):
        monkeypatch.setattr(op, "kernels", list(op.kernels))
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


class _Batch:
    """Of a PackedBatch what a bucket is chosen by."""

    has_rows = True

    def __init__(self, queries: tuple[int, ...], contexts: tuple[int, ...]) -> None:
        self.token_ids, self.logits_index = range(sum(queries)), range(len(queries))
        self.query_lengths_host, self.context_lengths_host = queries, contexts


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_attention_and_graphs_agree(head_dim: int, flash_attention: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when either has a rule of its own: with 128 keys at once for graphs and 80 for heads of 256 in attention, the first
    step here ran as a graph over pages, though attention gathers it, and the third ran without, though nothing gathers it."""
    cache = torch.zeros(2, PAGE, KV_HEADS, head_dim)
    paged = PagedCache(cache, cache)
    graphs = StepGraphs.__new__(StepGraphs)
    graphs._head_dim, graphs._buckets = head_dim, buckets(64, 8192)
    found: list[int] = []

    def gather(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found.append(given[4])
        return cache, cache, cache

    monkeypatch.setattr(flash_attention, "gather_pages", gather)
    workspace = Workspace("gathered", gathered_bytes(1, KV_HEADS, head_dim, torch.float32), torch.device("cpu"))
    agreed = set()
    for queries, contexts in STEPS:
        nothing = torch.zeros(len(queries) + 1, 1, dtype=torch.int32)
        sequences = PagedSequences(nothing, nothing, nothing, queries, contexts, workspace)
        found.clear()
        flash_attention.paged_attention_fa4(torch.zeros(1, HEADS, head_dim), paged, sequences)
        gathers = bool(found)
        assert (graphs.bucket_of(_Batch(queries, contexts)) is None) == gathers, (queries, contexts)  # type: ignore[arg-type]
        assert set(found) <= {80 if head_dim == 256 else 128}
        agreed.add(gathers)
    assert agreed == {True, False}
