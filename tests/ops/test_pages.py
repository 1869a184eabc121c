"""Which steps gather their keys, and that the memory plan knows how many at most."""

import random

import pytest

from sightline.ops.pages import GATHER_FROM, MOST_GATHERED, is_worth_gathering, most_gathered, rows_of


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
    assert is_worth_gathering(queries, contexts, 128) == worth


def test_no_step_gathers_more_than_the_plan_has_room_for() -> None:
    """Red when some mix of sequences gathers more rows than the largest step that was rehearsed."""
    chance = random.Random(0)
    gathered = 0
    for _ in range(20_000):
        tokens, longest = chance.choice((2048, 8192, 16_384)), chance.choice((4096, 32_768, 262_144, 1_000_000))
        queries: list[int] = []
        while sum(queries) < tokens and len(queries) < 12:
            queries.append(min(longest, chance.randint(1, tokens), tokens - sum(queries)))
        contexts = tuple(chance.randint(count, longest) for count in queries)
        if is_worth_gathering(tuple(queries), contexts, 128):
            gathered += 1
            assert rows_of(contexts, 128) <= most_gathered(tokens, longest) + 128 * len(queries)
    assert gathered > 1000 and GATHER_FROM > 1
