"""``plan/cohort.py``: values of many units, and units that are followed together."""

import numpy as np

from megatile.core.expr import unit
from megatile.plan.cohort import Cohort, TileHandle, highest, lowest, of_units, pick, spread, uniform


def test_values_that_all_units_share_are_numbers() -> None:
    assert uniform(np.array([3, 3, 3])) == 3
    assert pick(np.array([1, 2, 2]), [1, 2]) == 2
    assert (lowest(7), highest(np.array([4, 9]))) == (7, 9)
    assert spread(5, 2).tolist() == [5, 5]
    assert of_units(unit * 2, 3).tolist() == [0, 2, 4]


def test_units_at_equal_distances_are_a_slice() -> None:
    assert Cohort(0, np.array([1, 3, 5])).run == slice(1, 6, 2)
    assert Cohort(0, np.array([4])).run == slice(4, 5)
    assert Cohort(0, np.array([0, 1, 3])).run is None


def test_a_cohort_divides_and_keeps_what_is_known() -> None:
    whole = Cohort(0, np.arange(4), 7, {"k": np.array([0, 0, 1, 1])}, {"x": TileHandle("x")})
    left, right = whole.split(np.array([True, True, False, False]))
    assert (left.ints["k"], right.ints["k"], right.units.tolist()) == (0, 1, [2, 3])
    assert left.signature() == right.signature() == whole.signature()
