"""Pages of latents and attention over them, against slow and obvious code."""

from dataclasses import replace

import pytest
import torch

from sightline.ops.latent_attention import absorb, give_back, latent_attention, store_latents
from sightline.ops.latent_cache import LatentCache, empty_latent_cache, quantised_latents
from sightline.ops.sequences import PagedSequences

HEADS, NOPE, TURNED, VALUE, RANK, PAGE = 3, 5, 4, 6, 7, 4


def test_attention_is_that_over_keys_and_values_of_each_head() -> None:
    """Sequences in scattered pages, one query or several. Red when a head takes another's map, the rotated part is left out or
    scaled apart, a query sees later tokens, or the two ways differ."""
    torch.manual_seed(0)
    contexts, queries = (9, 1, 6, 13), (4, 1, 6, 1)
    keys, values = torch.randn(HEADS, NOPE, RANK), torch.randn(HEADS, VALUE, RANK)
    cache = LatentCache(torch.full((16, PAGE, RANK + TURNED), float("nan")), RANK)
    order, table, used = torch.randperm(16), torch.zeros(4, 4, dtype=torch.int32), 0
    kept = []
    for row, context in enumerate(contexts):
        pages = -(-context // PAGE)
        table[row, :pages], used = order[used : used + pages], used + pages
        place = torch.arange(context)
        rows = torch.randn(context, RANK + TURNED)
        store_latents(rows[:, :RANK], rows[:, RANK:], cache, table[row].long()[place // PAGE] * PAGE + place % PAGE)
        kept.append(rows)
    q = torch.randn(sum(queries), HEADS, NOPE + TURNED)
    starts = torch.tensor([0, 4, 5, 11, 12], dtype=torch.int32)
    sequences = PagedSequences(table, starts, torch.tensor(contexts, dtype=torch.int32), queries, contexts)
    found = latent_attention(q, keys, values, cache, sequences)
    for row, (context, count) in enumerate(zip(contexts, queries, strict=True)):
        for number in range(count):
            seen = kept[row][: context - count + number + 1]
            for head in range(HEADS):
                own = torch.cat((seen[:, :RANK] @ keys[head].T, seen[:, RANK:]), 1)
                weights = (own @ q[starts[row] + number, head] / (NOPE + TURNED) ** 0.5).softmax(0)
                expected = weights @ (seen[:, :RANK] @ values[head].T)
                torch.testing.assert_close(found[starts[row] + number, head], expected, atol=1e-5, rtol=1e-5)


def test_maps_go_through_queries_and_sums() -> None:
    torch.manual_seed(1)
    q, latent = torch.randn(2, HEADS, NOPE + TURNED), torch.randn(RANK + TURNED)
    keys, values = torch.randn(HEADS, NOPE, RANK), torch.randn(HEADS, VALUE, RANK)
    absorbed, back = absorb(q, keys), give_back(latent[:RANK].expand(2, HEADS, RANK), values)
    for head in range(HEADS):
        key = torch.cat((keys[head] @ latent[:RANK], latent[RANK:]))
        torch.testing.assert_close(absorbed[:, head] @ latent, q[:, head] @ key)
        torch.testing.assert_close(back[1, head], values[head] @ latent[:RANK])


@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_both_parts_have_a_scale_of_their_own(size: float) -> None:
    """A rotated part a thousand times as large as the latent costs it no bits. Red when they share one, or tokens do."""
    torch.manual_seed(2)
    factors = torch.tensor([1.0, 50.0, 0.01, 1.0])[:, None]
    latents, turned = torch.randn(4, 32) * factors, size * torch.randn(4, 16)
    cache = empty_latent_cache(3, PAGE, 32, 16, torch.device("cpu"), torch.bfloat16, quantised=True)
    slots = torch.tensor([5, 0, 11, 6])
    store_latents(latents, turned, cache, slots)
    found = cache.read(torch.tensor([0, 1, 2]), torch.float32)[slots]
    for part, right in ((found[:, :32], latents), (found[:, 32:], turned)):
        step = right.abs().amax(1, keepdim=True) / 448
        assert ((part - right).abs() <= torch.maximum(right.abs() / 16, step)).all()
    assert [tensor.dtype for tensor in cache.tensors] == [torch.float8_e4m3fn, torch.float32]


def test_a_quantised_cache_is_read_by_attention() -> None:
    """Red when attention reads bytes, or scales of other slots."""
    torch.manual_seed(3)
    plain = LatentCache(torch.randn(4, PAGE, RANK + TURNED), RANK)
    small = quantised_latents(plain)
    rounded = replace(plain, latents=small.read(torch.arange(4), torch.float32).view_as(plain.latents))
    q = torch.randn(3, HEADS, NOPE + TURNED)
    keys, values = torch.randn(HEADS, NOPE, RANK), torch.randn(HEADS, VALUE, RANK)
    table = torch.tensor([[2, 0, 3, 1], [1, 3, 0, 0]], dtype=torch.int32)
    starts, lengths = torch.tensor([0, 1, 3]), torch.tensor([14, 8])
    sequences = PagedSequences(table, starts.int(), lengths.int(), (1, 2), (14, 8))
    found, expected = (latent_attention(q, keys, values, cache, sequences) for cache in (small, rounded))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
