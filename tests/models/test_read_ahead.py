"""Reading ahead: order, bound, and errors in their turn."""

import threading

import pytest

from sightline.models.read_ahead import read_ahead


def test_values_come_in_order_and_not_too_many_ahead() -> None:
    """Red when values pile up: a checkpoint would lie in memory as a whole."""
    lock, made = threading.Lock(), []

    def make(number: int) -> int:
        with lock:
            made.append(number)
        return number * number

    for taken, (number, square) in enumerate(read_ahead(make, range(50), threads=3)):
        assert (number, square) == (taken, taken * taken)
        with lock:
            assert len(made) <= taken + 6
    assert sorted(made) == list(range(50))


def test_large_values_are_not_made_ahead() -> None:
    """Red when only their number is bounded: eight layers' experts at once would not fit beside the rest of a model."""
    lock, made = threading.Lock(), []

    def make(size: int) -> int:
        with lock:
            made.append(size)
        return size

    sizes = [3, 4, 3, 50, 1, 1, 9, 9, 2]
    taken: list[int] = []
    for size, _ in read_ahead(make, sizes, threads=3, size=lambda size: size, most=10):
        with lock:
            held = sum(made) - sum(taken)
        assert held <= 10 or held == 50
        taken.append(size)
    assert taken == sizes


def test_an_error_comes_when_its_turn_has_come() -> None:
    taken = []
    with pytest.raises(ZeroDivisionError):
        for number, _ in read_ahead(lambda number: 1 // (5 - number), range(100), threads=2):
            taken.append(number)
    assert taken == [0, 1, 2, 3, 4]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read_")]


def test_who_leaves_early_leaves_no_thread() -> None:
    values = read_ahead(str, range(100), threads=2)
    assert next(values) == (0, "0")
    values.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read_")]
