"""Keys of sequences of different lengths, shared out in parts."""

from random import Random

import pytest

from sightline.ops.split_kv import make_split_kv


@pytest.mark.parametrize("seed", range(20))
def test_every_key_is_in_one_part(seed: int) -> None:
    """Red when a key is left out or counted twice, or when a list does not fit."""
    random = Random(seed)
    count = random.randint(1, 300)
    contexts = [random.choice((0, 1, 64, 65, random.randint(1, 2000), random.randint(1, 200_000))) for _ in range(count)]
    items = count + random.randint(1, 200)
    shared = make_split_kv(contexts, items, 128)
    size, first = int(shared["size"][0]), shared["first"].tolist()
    assert size % 128 == 0 and first[0] == 0 and first[-1] <= items and len(shared["sequence"]) == len(shared["part"]) == items
    found = list(zip(shared["sequence"].tolist(), shared["part"].tolist(), strict=True))
    expected = [(number, part) for number, context in enumerate(contexts) for part in range(-(-context // size))]
    assert found == expected + [(-1, 0)] * (items - len(expected))
    for number in range(count):
        assert all(found[item][0] == number for item in range(first[number], first[number + 1]))


def test_a_long_sequence_gets_most_of_the_parts() -> None:
    shared = make_split_kv([32768] + [1024] * 31, 32 + 128, 128)
    assert int(shared["size"][0]) == 512 and shared["first"][1] == 64 and shared["first"][-1] == 64 + 2 * 31
