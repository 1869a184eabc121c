"""Which part of a dimension each rank has, for every number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import ConfigError
from sightline.parallel.split import even_spans, head_shares, spans


@given(st.integers(0, 5000), st.integers(1, 9), st.sampled_from([1, 4, 64]))
def test_spans_cover_all_once_and_differ_by_a_unit(total: int, ranks: int, unit: int) -> None:
    found = spans(total, ranks, unit)
    assert [first for first, _ in found] == [sum(length for _, length in found[:rank]) for rank in range(ranks)]
    assert sum(length for _, length in found) == total
    lengths = [length for _, length in found]
    assert max(lengths) - min(lengths) <= 2 * unit and all(first % unit == 0 for first, _ in found if first < total)


@pytest.mark.parametrize(
    ("total", "ranks", "lengths"),
    [(12288, 8, {1536}), (18944, 8, {2368}), (18944, 4, {4736}), (151936, 8, {18992}), (24, 3, {8}), (4304, 3, {1440, 1424})],
)
def test_widths_are_equal_where_they_can_be(total: int, ranks: int, lengths: set[int]) -> None:
    assert {length for _, length in even_spans(total, ranks)} == lengths


def test_blocks_of_scales_are_not_cut() -> None:
    """18,944 has 148 blocks of 128: 37 for each of four ranks, and for eight 19 or 18."""
    assert {length for _, length in even_spans(18944, 8, 128)} == {19 * 128, 18 * 128}


def test_a_width_for_too_many_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size is 5, but a layer 4 wide"):
        even_spans(4, 5)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 12))
def test_every_query_is_with_its_key(kv_heads: int, group: int, ranks: int) -> None:
    """Red when a query head is left out or there twice, or is on a rank without the key that it attends to."""
    heads = kv_heads * group
    try:
        found = head_shares(heads, kv_heads, ranks)
    except ConfigError:
        assert ranks > heads or -(-ranks // kv_heads) > group
        return
    queries = [share.first + index for share in found for index in range(share.count)]
    assert queries == list(range(heads)) and len(found) == ranks
    for share in found:
        assert share.count % share.kv_count == 0 and share.count > 0
        for index in range(share.count):  # attention takes equal groups
            own = share.first_kv + index // (share.count // share.kv_count)
            assert own == (share.first + index) // group


def test_ranks_that_cannot_have_a_head_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size is 9, but the model has only 8 heads"):
        head_shares(8, 2, 9)
