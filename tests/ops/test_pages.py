"""Which steps gather their keys, that the memory plan knows how many at most, and that they take no more memory than that."""

import random

import pytest
import torch

from sightline.ops.attention import paged_attention
from sightline.ops.dispatch import ExampleMaker
from sightline.ops.kernels import register_kernels
from sightline.ops.paged_cache import PagedCache
from sightline.ops.pages import (
    GATHER_FROM,
    KEYS_AT_ONCE,
    MOST_GATHERED,
    gather_pages,
    gathered,
    gathered_bytes,
    is_worth_gathering,
    most_gathered,
    rows_of,
)
from sightline.ops.sequences import PagedSequences
from sightline.ops.workspace import Workspace


@pytest.mark.parametrize(
    ("queries", "contexts", "worth"),
    [
        ((8192,), (8192,), True),
        ((2089,), (2089,), False),  # most of its queries see few keys
        ((2089,), (16_712,), True),
        ((929,), (7432,), False),
        ((1,) * 32, (1024,) * 32, False),
        ((1,) * 31 + (8000,), (1024,) * 31 + (60_000,), True),
        ((473,) * 17, (473,) * 17, False),
        ((8192,), (MOST_GATHERED + 1,), False),  # more than there is room for
    ],
)
def test_keys_are_gathered_where_many_queries_read_them(
    queries: tuple[int, ...], contexts: tuple[int, ...], worth: bool
) -> None:
    assert is_worth_gathering(128, queries, contexts) == worth
    assert not is_worth_gathering(96, queries, contexts), "no kernel gathers heads of this size"


def test_no_step_gathers_more_than_the_plan_has_room_for() -> None:
    """Red when some mix of sequences gathers more rows than the workspace has, or any where the plan says that none does."""
    chance = random.Random(0)
    found = 0
    for _ in range(20_000):
        tokens, longest = chance.choice((2048, 8192, 16_384)), chance.choice((4096, 32_768, 262_144, 1_000_000))
        head_dim = chance.choice(tuple(KEYS_AT_ONCE))
        queries: list[int] = []
        while sum(queries) < tokens and len(queries) < 12:
            queries.append(min(longest, chance.randint(1, tokens), tokens - sum(queries)))
        contexts = tuple(chance.randint(count, longest) for count in queries)
        if is_worth_gathering(head_dim, tuple(queries), contexts):
            found += 1
            assert 0 < rows_of(contexts, KEYS_AT_ONCE[head_dim]) <= most_gathered(tokens, longest, len(queries))
    assert found > 1000 and GATHER_FROM > 1


@pytest.mark.parametrize("longest", [1000, 3071, 3072, 10_000, 300_000])
def test_a_plan_without_gathering_is_one_of_small_steps(longest: int) -> None:
    """Red when a workspace is kept that no step can use: the step that reads its keys most often does not gather them."""
    one = min(longest, MOST_GATHERED)
    for tokens in (1, 16, 1024, 1535, 1536, 1600, 2048, 3072, 8192):
        queries = min(tokens, one)
        assert (most_gathered(tokens, longest, 1) > 0) == is_worth_gathering(128, (queries,), (one,)), tokens


def made_workspace(rows: int, cache: torch.Tensor) -> Workspace:
    return Workspace("gathered", gathered_bytes(rows, *cache.shape[2:], cache.dtype), cache.device)


def test_what_was_in_a_workspace_does_not_matter() -> None:
    """Red when what an earlier step gathered is read by a later one, or when more is gathered than there is memory for."""
    cache = torch.randn(9, 4, 2, 8)
    workspace = made_workspace(64, cache)
    places = set()
    for contexts in ((3, 30), (17,), (1, 1, 1), (9, 10, 11)):
        table = torch.randint(0, 9, (len(contexts), 8), dtype=torch.int32)
        lengths = torch.tensor(contexts, dtype=torch.int32)
        paged = PagedCache(cache, cache)
        expected = gather_pages(paged, table, lengths, contexts, 8, cache.dtype, made_workspace(64, cache))
        for kept in workspace.take(*gathered(64, 2, 8, cache.dtype)):
            kept.fill_(float("nan"))
        found = gather_pages(paged, table, lengths, contexts, 8, cache.dtype, workspace)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        places.add(found[0].data_ptr())
    assert len(places) == 1 and workspace.nbytes == 2 * 64 * 2 * 8 * 4
    with pytest.raises(AssertionError, match="asked of the workspace gathered, which has 8192"):
        workspace.take(*gathered(65, 2, 8, cache.dtype))


def test_an_example_of_attention_gathers_its_keys() -> None:
    """Red when the only way to test that on a GPU no longer does."""
    examples = paged_attention.examples(ExampleMaker(torch.device("cpu"), torch.bfloat16))
    found = [example["sequences"] for example in examples]
    assert any(is_worth_gathering(128, one.query_lengths_host, one.context_lengths_host) and one.workspace for one in found)


@pytest.mark.gpu
def test_longer_and_longer_contexts_take_no_more_memory() -> None:
    """As a prompt's steps do. Red when each of them leaves a block with the allocator that is too small for the next."""
    register_kernels()
    device, tokens, page_size, longest = torch.device("cuda"), 4096, 16, 2**17
    cache = torch.zeros(64, page_size, 8, 128, dtype=torch.bfloat16, device=device)
    q = torch.zeros(tokens, 32, 128, dtype=torch.bfloat16, device=device)
    workspace = made_workspace(most_gathered(tokens, longest, 1), cache)
    taken = []
    for context in range(2 * tokens, longest + 1, tokens):
        table = torch.randint(0, 64, (1, context // page_size), dtype=torch.int32, device=device)
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)
        lengths = torch.tensor([context], dtype=torch.int32, device=device)
        paged_attention(q, PagedCache(cache, cache), PagedSequences(table, starts, lengths, (tokens,), (context,), workspace))
        assert is_worth_gathering(128, (tokens,), (context,))
        taken.append(torch.cuda.memory_reserved())
    assert taken[-1] - taken[0] <= 4 * 2**20, taken  # a table of pages
