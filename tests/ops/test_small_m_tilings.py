"""How small-M GEMMs are cut, at the sizes of no model in particular."""

import json
import random
from pathlib import Path

import pytest

from sightline.ops.triton.small_m_tilings import (
    H200,
    ROW_BUCKETS,
    Chip,
    Form,
    Tiling,
    _gated_rule,
    _linear_rule,
    can_run,
    fits_workspace,
    gated_tiling,
    linear_tiling,
    row_bucket,
    shipped_choices,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "small_m.json"


def shapes(count: int) -> list[tuple[int, int]]:
    chance = random.Random(7)
    return [(64 * chance.randrange(8, 3000), 128 * chance.randrange(6, 240)) for _ in range(count)]


# Red if a weight of unknown size stays with the library for few rows, does not fit the chip, or leaves most of it idle.
@pytest.mark.parametrize("rows", [1, 16, 32])
def test_weights_of_every_size_have_a_tiling(rows: int) -> None:
    for width, size in shapes(200):
        tiling = linear_tiling(rows, width, size)
        assert tiling is not None, (width, size)
        programs = -(-width // tiling.columns) * tiling.split
        assert fits_workspace(row_bucket(rows), width, tiling) and size // tiling.inner // tiling.split >= 3
        assert programs >= min(64, -(-width // 64) * (size // 128 // 6)), (width, size, tiling)
        gated = gated_tiling(rows, width, size)
        assert gated is not None or rows > 16
        for one, both in ((tiling, 1), (gated, 2)):
            if one is not None:
                assert 2 * one.inner * one.stages * (both * one.columns + row_bucket(rows)) <= H200.shared_bytes


# Red if 8-bit weights, per channel (256 numbers at a time) or in blocks (128), have none, or one that does not fit.
@pytest.mark.parametrize(("form", "inner"), [("fp8 blocks", 128), ("fp8", 256)])
@pytest.mark.parametrize("rows", [1, 32, 64])
def test_weights_of_8_bits_have_a_tiling(rows: int, form: Form, inner: int) -> None:
    for width, size in shapes(200):
        for one, both in ((linear_tiling(rows, width, size, form), 1), (gated_tiling(rows, width, size, form), 2)):
            assert one is not None and one.inner in (128, inner) and size % one.inner == 0
            assert one.inner * one.stages * (both * one.columns + row_bucket(rows)) <= H200.shared_bytes


# Red if programs wait for a second wave where all could run at once.
@pytest.mark.parametrize("rows", [1, 32])
def test_programs_fit_into_one_wave_where_they_can(rows: int) -> None:
    for width, size in shapes(200):
        tiling = linear_tiling(rows, width, size)
        assert tiling is not None
        programs, room = -(-width // tiling.columns) * tiling.split, H200.programs_at_once(tiling, row_bucket(rows), False)
        most = max(H200.programs_at_once(Tiling(64, 128, 1, 4, 3, True), row_bucket(rows), False), H200.multiprocessors)
        assert programs <= room or -(-width // 64) > most


# Red if the number of multiprocessors is not asked for.
def test_a_smaller_chip_shares_sums_less() -> None:
    small = Chip("half", H200.multiprocessors // 2, H200.shared_bytes)
    large, half = linear_tiling(1, 2048, 8192), linear_tiling(1, 2048, 8192, chip=small)
    assert large is not None and half is not None and large.split == 4 and half.split == 2


# Red if what was measured is not used, or an entry could not run.
def test_data_wins_over_the_rule() -> None:
    shipped = shipped_choices("NVIDIA H200")
    assert len(shipped) > 10
    for shape, tiling in shipped.items():
        assert shape.rows in ROW_BUCKETS and can_run(shape, tiling, H200)
        assert (gated_tiling if shape.gated else linear_tiling)(shape.rows, shape.width, shape.size) == tiling


# Red if the rule is changed into one that is far from the best where that is known.
def test_the_rule_is_close_to_the_best_that_was_measured() -> None:
    worst, total, count = 0.0, 0.0, 0
    for entry in json.loads(RESULTS.read_text())["shapes"]:
        times = {None if tiling is None else Tiling(*tiling): time for tiling, time in entry["microseconds"]}
        rule = (_gated_rule if entry["gated"] else _linear_rule)(entry["rows"], entry["width"], entry["size"], H200)
        ratio = times[rule] / min(times.values())
        worst, total, count = max(worst, ratio), total + ratio, count + 1
    assert count > 100 and total / count < 1.015 and worst < 1.2
