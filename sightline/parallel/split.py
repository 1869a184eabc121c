"""Which part of a dimension each rank has: arithmetic alone, no torch.

Spans are (first, length), in the order of ranks, and cover all of it. Where it does not divide, the first ranks have more.
"""

from dataclasses import dataclass

from sightline.errors import ConfigError

Span = tuple[int, int]
_WIDEST_UNIT = 128  # tiles of GEMMs, and blocks of 8-bit floats


def spans(total: int, ranks: int, unit: int = 1) -> tuple[Span, ...]:
    """In multiples of `unit`, but for the last."""
    units = -(-total // unit)
    found, first = [], 0
    for rank in range(ranks):
        count = units // ranks + (rank < units % ranks)
        length = min(count * unit, total - first)
        found.append((first, length))
        first += length
    return tuple(found)


def even_spans(total: int, ranks: int, least_unit: int = 1) -> tuple[Span, ...]:
    """In the largest multiples up to 128 with which all ranks have as much, else in those with which all have some."""
    units = [unit for unit in (128, 64, 32, 16, 8, 4, 2, 1) if least_unit <= unit <= _WIDEST_UNIT and total % unit == 0]
    equal = [unit for unit in units if total // unit % ranks == 0 and unit >= 16]
    some = [unit for unit in units if total // unit >= ranks]
    if not some:
        raise ConfigError(f"tensor_parallel_size is {ranks}, but a layer {total} wide cannot be split over as many ranks.")
    return spans(total, ranks, (equal or some)[0])


@dataclass(frozen=True)
class HeadShare:
    """A rank's heads of attention: queries, and the keys and values that they attend to."""

    first: int
    count: int
    first_kv: int
    kv_count: int


def head_shares(heads: int, kv_heads: int, ranks: int, noun: str = "heads of attention") -> tuple[HeadShare, ...]:
    """Each key head goes to a rank with all queries that share it; where ranks are more, several ranks hold the same one.

    8 queries over 2 keys, 4 ranks     queries 0 1 │ 2 3 │ 4 5 │ 6 7     keys 0 │ 0 │ 1 │ 1

    `noun`: what the heads are, for messages.
    """
    if ranks > heads:
        raise ConfigError(f"tensor_parallel_size is {ranks}, but the model has only {heads} {noun} to split.")
    group = heads // kv_heads
    if ranks <= kv_heads:
        return tuple(HeadShare(first * group, count * group, first, count) for first, count in spans(kv_heads, ranks))
    found = []
    for kv, (_, sharers) in enumerate(spans(ranks, kv_heads)):
        if sharers > group:  # as when 5 ranks share 3 keys of 2 queries
            raise ConfigError(
                f"tensor_parallel_size is {ranks}, but {heads} heads over {kv_heads} keys and values cannot be split so."
            )
        found += [HeadShare(kv * group + first, count, kv, 1) for first, count in spans(group, sharers)]
    return tuple(found)
