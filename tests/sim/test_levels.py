"""Levels, instances and slots in the simulator: waves, balance, deadlock, sessions, memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.toys import toy

from megatile.core.expr import Const, Expr, eq, unit
from megatile.hda import machine
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan, PlanError
from megatile.sim import Deadlock, Session, simulate
from megatile.sim.simulation import Simulation
from megatile.timing import Resources


def blocks(count: int, slots: int | None, length: Expr, units: int = 1) -> Plan:
    """Blocks of a launch on the cores of a box; block k adds up ``length`` floats."""
    b = PlanBuilder("blocks", scale="device", units=units)
    level = b.level("block", scale="core", grid=count, parent="device", slots=slots)
    t = b.tile("t", (64,), "f32", memory="local", level=level)
    with b.stream(level=level):
        b.compute("add", t[0:length], [t[0:length], t[0:length]])
    return b.finish()


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_blocks_take_the_first_slot_that_becomes_free(engine: str) -> None:
    """Four cores; block k takes 5 + (7 k mod 40) + 1 ps. What a list scheduler does, by hand."""
    result = simulate(blocks(11, 1, unit * 7 % 40 + 1), machine=toy(4), engine=engine)
    free, expected = [0] * 4, {}
    for block in range(11):
        core = free.index(min(free))
        start, free[core] = free[core], free[core] + 5 + block * 7 % 40 + 1
        expected[f"core{core}/block{block}"] = (start, free[core])
    assert {e.unit: (e.start_ps, e.end_ps) for e in result.trace} == expected
    assert result.time_ps == max(free)


def test_two_slots_share_the_engines_of_a_core() -> None:
    trace = simulate(blocks(8, 2, Const(16)), machine=toy(4)).trace
    assert sorted((e.start_ps, e.end_ps) for e in trace) == [(0, 21)] * 4 + [(21, 42)] * 4


def test_an_instance_that_never_gets_a_slot_is_in_the_deadlock() -> None:
    """Every block waits for the last one, which has no slot before they end."""
    b = PlanBuilder("stuck", scale="device", units=1)
    level = b.level("block", scale="core", grid=5, parent="device", slots=1)
    go = b.flag("go", level=level)
    with b.stream(level=level):
        with b.when(eq(unit, 4)):
            for to in range(4):
                b.signal(go, to=to)
        with b.when(unit < 4):
            b.wait(go, 1)
    with pytest.raises(Deadlock, match="block4") as caught:
        simulate(b.finish(), machine=toy(4))
    lacks = {(w.unit, w.lacks) for w in caught.value.graph.waiters}
    assert lacks == {("block4", "slot")} | {(f"core{i}/block{i}", "signal") for i in range(4)}


def test_slots_are_checked_against_memory() -> None:
    b = PlanBuilder("big", scale="device", units=1)
    level = b.level("block", scale="core", grid=2, parent="device", slots=3)
    t = b.tile("t", (1 << 27,), "f32", memory="local", level=level)
    with b.stream(level=level):
        b.compute("fill", t, value=1.0)
    with pytest.raises(PlanError, match="memory 'local'"):
        simulate(b.finish(), machine=toy(4))


def test_a_session_launches_plans_with_levels() -> None:
    b = PlanBuilder("rows", scale="device", units=1)
    level = b.level("block", scale="core", grid=6, parent="device", slots=1)
    x = b.tile("x", (6, 4), "f32", memory="common", role="inout")
    row = b.tile("row", (1, 4), "f32", memory="local", level=level)
    with b.stream(level=level):
        b.copy(row, x[unit : unit + 1, 0:4])
        b.compute("add", row, [row, row])
        b.copy(x[unit : unit + 1, 0:4], row)
    plan, values = b.finish(), np.arange(24, dtype="f4").reshape(1, 6, 4)
    with Session(toy(4)) as session:
        session.launch(plan, {"x": values})
        session.launch(plan)
        np.testing.assert_array_equal(session.read("x"), 4 * values)
        assert session.time_ps == 2 * session.launches[0].end_ps


def waves(count: int, steps: int) -> Plan:
    b = PlanBuilder("waves", scale="device", units=1)
    level = b.level("block", scale="block", grid=count, parent="device", slots=1)
    a = b.tile("a", (steps, 64), "f16", memory="hbm", role="input")
    t = b.tile("t", (64,), "f16", memory="shared", level=level, versions=4)
    acc = b.tile("acc", (64,), "f16", memory="shared", level=level)
    with b.stream(level=level):
        b.compute("fill", acc, value=0.0)
        with b.loop(0, steps) as loop:
            b.copy(t, a[loop.index, 0:64], fresh=True)
            b.compute("add", acc, [acc, t], engine="tensor")
    return b.finish()


def test_memory_does_not_grow_with_instances() -> None:
    """Ten times the blocks on the same SMs take many times as long in (almost) the same memory."""
    hda, found = machine("dgx-h100"), []
    for count in (132, 1320):
        simulation = Simulation(record=0)
        plan = waves(count, 16)
        simulation.add(plan, Resources(hda, plan), lambda *_: 0)
        simulation.run()
        used = simulation.arena.words
        found.append((simulation.arena.last, used))
    (short, small), (long, large) = found
    assert 3 * short < long
    assert large < small + 1320 * 64


def test_launches_of_blocks_take_a_device_in_turn() -> None:
    """Waves of four blocks of 69 ps: two, one and two of them, submitted at once."""
    with Session(toy(4)) as session:
        launches = [session.submit(blocks(count, 1, Const(64))) for count in (8, 4, 8)]
        session.wait()
        assert [launch.end_ps for launch in launches] == [138, 207, 345]
