"""``plan/storage.py``: where a plan's data lives while it is executed."""

import numpy as np
import pytest
from tests.plan.execute_cases import builder

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.execute import execute
from megatile.plan.model import PlanError
from megatile.plan.storage import allocate, read_inputs


def plan():
    b = PlanBuilder("p", scale="core", units=2)
    x = b.tile("x", (3,), "f16", memory="local", role="input")
    b.copy(b.tile("n", (3,), "i32", memory="local", role="output"), x)
    return b.finish()


def test_what_nobody_has_written_is_nan_or_zero() -> None:
    p = plan()
    x, n = (next(t for t in p.tiles if t.name == name) for name in "xn")
    assert np.isnan(allocate(p, x, None)).all()
    assert not allocate(p, n, None).any()
    assert allocate(p, x, np.ones((2, 3))).shape == (2, 1, 3)  # owners, versions, elements


def test_inputs_have_a_row_for_each_owner() -> None:
    ((tile, array),) = read_inputs(plan(), {"x": [[1, 2, 3], [4, 5, 6]]})
    assert (tile.name, array.dtype, array[1].tolist()) == ("x", np.float16, [4, 5, 6])
    for given, message in (
        ({"x": np.ones(3)}, "has shape"),
        ({"y": np.ones(3)}, "is not an input"),
        ({}, "'x' is missing"),
    ):
        with pytest.raises(PlanError, match=message):
            list(read_inputs(plan(), given))


@pytest.mark.parametrize(("units", "rows"), [(4, 2), (8, 1), (8, 2)])
def test_units_read_and_write_blocks_of_rows_of_their_own(units, rows):
    """Few units one after another, many at once."""
    b = builder(units)
    x = b.tile("x", (16, 3), "f32", memory="tcm", role="input")
    y = b.tile("y", (16, 3), "f32", memory="tcm", role="output")
    for at in range(0, 16, rows):
        to, there = (unit * rows + at) % 16, (unit * rows + at + 8) % 16
        b.copy(y[to : to + rows], x[there : there + rows])
    values = np.arange(48.0 * units, dtype=np.float32).reshape(units, 16, 3)
    np.testing.assert_array_equal(execute(b.finish(), {"x": values})["y"], np.roll(values, 8, axis=1))
