"""Accesses of one storage: conflicts are found, repeated accesses cost nothing, ended units merge."""

import numpy as np
import pytest

from megatile.targets.interpret.history import ATOMIC, READ, WRITE, History
from megatile.targets.interpret.units import Unit


def family(count: int) -> list[Unit]:
    root = Unit(None, (), None, {})
    root.fork()
    return [Unit(root, (k,), None, {}) for k in range(count)]


def box(*runs: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return ((0, 1), *runs)


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        (READ, READ, False),
        (READ, WRITE, True),
        (WRITE, READ, True),
        (WRITE, WRITE, True),
        (ATOMIC, ATOMIC, False),
        (ATOMIC, READ, True),
        (WRITE, ATOMIC, True),
    ],
)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("others", [0, 40])
def test_kinds(first: int, second: int, races: bool, size: int, others: int) -> None:
    a, b = family(2)
    history = History(2)
    for k in range(others):  # many rows: compared all at once
        history.add(box((100 + 2 * k, 102 + 2 * k)), WRITE, a, None, None)
    history.add(box((0, size)), first, a, None, None)
    found = history.check(box((0, size)), second, b, b, None)
    assert (found is not None) == races
    assert history.check(box((size, 2 * size)), second, b, b, None) is None


def test_sets_of_indices_are_compared_exactly() -> None:
    a, b = family(2)
    even, odd = np.array([0, 2, 4]), np.array([1, 3, 5])
    history = History(2)
    history.add(((0, 1), even), WRITE, a, None, None)
    assert history.check(((0, 1), odd), WRITE, b, b, None) is None
    assert history.check(((0, 1), (4, 5)), WRITE, b, b, None) is not None
    assert history.check(((0, 1), (3, 4)), WRITE, b, b, None) is None


def test_points_are_compared_exactly() -> None:
    a, b = family(2)
    history = History(3)
    history.add(box((0, 3), (0, 3)), WRITE, a, None, np.array([[0, 0, 0], [0, 1, 1], [0, 2, 2]]))
    assert history.check(box((0, 1), (2, 3)), WRITE, b, b, None) is None
    assert history.check(box((1, 2), (1, 2)), WRITE, b, b, None) is not None
    assert history.check(box((0, 3), (0, 3)), READ, b, b, np.array([[0, 0, 1], [0, 2, 0]])) is None
    assert history.check(box((0, 3), (0, 3)), READ, b, b, np.array([[0, 0, 1], [0, 2, 2]])) is not None


def test_repeated_accesses_take_one_row() -> None:
    (a,) = family(1)
    history = History(2)
    for _ in range(1000):
        history.add(box((0, 4)), READ, a, None, None)
    assert len(history.rows) == 1


def test_units_that_ended_merge() -> None:
    (a, b) = family(2)
    history = History(2)
    for _ in range(100):
        a.fork()
        inner = Unit(a, (0, 0), None, {})
        history.add(box((0, 4)), WRITE, inner, None, None)
        inner.end()
        a.join()
    assert len(history.rows) <= 16
    assert history.check(box((0, 4)), READ, a, a, None) is None
    assert history.check(box((0, 4)), READ, b, b, None) is not None


def test_what_ended_with_the_launch_is_dropped() -> None:
    history = History(2)
    for unit in family(100):
        history.add(box((unit.path[0], unit.path[0] + 1)), WRITE, unit, None, None)
        unit.end()
    assert len(history.rows) < 100
