"""Rows of the engine's tables by field, and the functions of the engine without them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.records.rows import NONE, Row, Words, show
from megatile.sim.data import Assumed
from megatile.sim.instructions import ReceiveRow, SendRow
from megatile.sim.simulation import Simulation
from megatile.sim.state import Access, CommandRow, PathRow, Queue
from megatile.timing import Resources


def test_a_field_is_a_column_of_the_class_and_an_integer_of_a_row() -> None:
    rows = np.arange(2 * Queue.width)
    assert rows.reshape(2, -1)[1, Queue.slots] == Queue.width + 2
    queue = Queue(rows, Queue.width)
    assert (queue.sent, queue.slots) == (Queue.width, Queue.width + 2)
    queue.slots += 5
    assert rows[Queue.width + 2] == Queue.width + 7
    assert queue.at(-1).sent == 0


def test_operands_follow_those_that_kinds_have_in_common() -> None:
    row = SendRow.row(kind=SendRow.KIND, channel=3, to=5)
    assert SendRow(row).to == 5
    assert ReceiveRow.of(SendRow(row)).channel == 3
    assert SendRow(row).region == NONE


def test_what_is_not_a_field_is_refused() -> None:
    with pytest.raises(TypeError, match="SendRow has no field 'too', only kind, figures, channel, per, to"):
        SendRow.row(too=1)
    with pytest.raises(TypeError, match="Wrong: no field can be called 'width'"):
        type("Wrong", (Row,), {"__annotations__": {"width": "int"}})


def test_rows_that_end_with_words_and_those_with_room() -> None:
    assert Access.width == len(Access.fields) - 1
    assert CommandRow.width == 40
    access = Access(np.arange(20), 2)
    assert isinstance(access.bounds, Words)
    assert access.bounds[1] == 2 + Access.width + 1
    assert access.bounds.at(2)[0] == 2 + Access.width + 2


def test_a_row_of_a_simulation_can_be_shown() -> None:
    b = PlanBuilder("p", scale="core", units=3)
    x = b.tile("x", (8,), "f32", memory="local")
    b.copy(x.at((unit + 1) % 3), x)
    simulation, plan = Simulation(), b.finish()
    simulation.add(plan, Resources(toy(3), plan), Assumed(None))
    simulation.run()
    assert show(simulation.arena.units[1]).startswith("UnitRow(now=0, pc=2, state=10,")
    path = simulation.arena.paths[0]
    assert isinstance(path, PathRow)
    assert path.rate > 1e9
