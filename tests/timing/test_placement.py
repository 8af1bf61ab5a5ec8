"""``timing/placement.py``: a plan on the units of a machine."""

from __future__ import annotations

import numpy as np
from tests.timing.many_routes_cases import grid

from megatile.core.expr import select, unit
from megatile.plan.build import PlanBuilder
from megatile.sim import plain
from megatile.sim.data import Assumed
from megatile.sim.simulation import Simulation
from megatile.sim.state import UnitRow
from megatile.timing import Resources


def test_expressions_of_many_units_are_those_of_each() -> None:
    n = 9
    b = PlanBuilder("p", scale="core", units=n)
    x = b.tile("x", (64,), "f32", memory="local")
    with b.loop(0, 4) as loop:
        other = select(unit % 2, (unit * 5 - loop.index) % n, (unit - 7) // 2 % n)
        b.copy(x.at(other), x)
    simulation = Simulation(record=0)
    plan = b.finish()
    simulation.add(plan, Resources(grid("ring", [9], 1), plan), Assumed(None))
    memory, rows = simulation.arena.memory, simulation.arena.rows("units")
    found = 0
    for x_number in range(simulation.arena.used["expressions"]):
        frame = simulation.arena.rows("frames")[int(rows[0, UnitRow.frame]) :]
        values, always = simulation.code_tables.meanings[x_number].of_all(np.arange(n), frame)
        if always:
            found += 1
            each = [
                int(plain.engine().evaluate(memory, x_number, int(rows[u, UnitRow.frame]))) for u in range(n)
            ]
            assert values.tolist() == each
    assert found
