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


def test_what_ended_races_until_it_is_joined() -> None:
    history = History(2)
    *ended, last = family(100)
    for unit in ended:
        history.add(box((unit.path[0], unit.path[0] + 1)), WRITE, unit, None, None)
        unit.end()
    assert history.check(box((0, 1)), READ, last, last, None) is not None
    last.end()
    root = last.parent
    assert isinstance(root, Unit)
    root.join()
    root.fork()
    later = Unit(root, (0,), None, {})
    for k in range(200):
        assert history.check(box((k, k + 1)), WRITE, later, later, None) is None
        history.add(box((k, k + 1)), WRITE, later, None, None)
    assert all(row.agent is later for row in history.rows)


@pytest.mark.parametrize("seed", range(8))
def test_many_boxes_of_all_sizes_are_found(seed: int) -> None:
    """What the grid finds is what comparing with every earlier access finds."""
    rng = np.random.default_rng(seed)
    units, history, past = family(40), History(3), []
    for step in range(400):
        sizes = rng.choice([1, 4, 4, 4, 30] if seed % 2 else [1, 1, 1, 8, 60], 2)
        low = rng.integers(0, 64, 2)
        one = box(*((int(a), int(a + s)) for a, s in zip(low, sizes, strict=True)))
        unit = units[int(rng.integers(40))]
        kind = int(rng.choice([READ, WRITE, ATOMIC], p=[0.6, 0.2, 0.2]))
        expected = any(
            other is not unit
            and (kind != done or kind == WRITE)
            and all(_meets(a, b) for a, b in zip(one, two, strict=True))
            for two, done, other in past
        )
        assert (history.check(one, kind, unit, unit, None) is not None) == expected, step
        if not expected:
            history.add(one, kind, unit, None, None)
            past.append((one, kind, unit))
    assert len(past) > 30


def _meets(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
