"""Kernels for one query of each sequence are not for steps that merely have as many tokens as sequences."""

import pytest
import torch

pytest.importorskip("triton")
from sightline.ops.dispatch import OPS
from sightline.ops.kernels import register_kernels
from sightline.ops.paged_cache import PagedCache
from sightline.ops.rotary import RotaryTable, TextRotation
from sightline.ops.sequences import PagedSequences
from sightline.worker.step_graphs import StepBucket, buckets

HEADS, KV_HEADS, SIZE = 8, 2, 64


def takes_it(bucket: StepBucket, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels for one query each that would be captured for a step of this size."""
    from sightline.ops.triton import new_tokens, paged_attention

    for module in (new_tokens, paged_attention):
        monkeypatch.setattr(module, "runs_here", lambda _: True)
    others = (1,) * (bucket.sequences - 1)
    lengths = (1 if bucket.decoding else bucket.tokens, *others)  # as worker/step_graphs.py says them
    cache = PagedCache(torch.empty(2, 16, KV_HEADS, SIZE), torch.empty(2, 16, KV_HEADS, SIZE))
    table, starts = torch.zeros(bucket.sequences, 4, dtype=torch.int32), torch.zeros(bucket.sequences + 1, dtype=torch.int32)
    sequences = PagedSequences(table, starts, starts[1:], lengths, (64,) * bucket.sequences)
    qkv, slots = torch.empty(bucket.tokens, HEADS + 2 * KV_HEADS, SIZE), torch.zeros(bucket.tokens, dtype=torch.int64)
    rotation = TextRotation(starts, RotaryTable(torch.empty(8, SIZE // 2), torch.empty(8, SIZE // 2)), starts, "halves")
    found = []
    if new_tokens._takes(qkv, None, rotation, cache, slots, sequences):
        found.append("attend_new_tokens")
    if paged_attention._takes_decoding(qkv[:, :HEADS].contiguous(), cache, sequences):
        found.append("paged_attention")
    return found


@pytest.mark.parametrize("most", [8, 64, 256])
def test_graphs_of_prompts_never_take_the_kernels_for_single_queries(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    register_kernels()
    assert {"attend_new_tokens", "paged_attention"} <= OPS.keys()
    alike = 0
    for bucket in buckets(most, 4096):
        assert takes_it(bucket, monkeypatch) == (["attend_new_tokens", "paged_attention"] if bucket.decoding else []), bucket
        alike += not bucket.decoding and bucket.tokens == bucket.sequences
    assert alike > 0 or most < 64, "no step has as many tokens as sequences: this tests nothing"


def test_single_queries() -> None:
    for lengths, single in (((1, 1), True), ((2, 1, 1), False), ((), False)):
        nothing = torch.empty(0)
        assert PagedSequences(nothing, nothing, nothing, lengths, lengths).one_query_each == single
