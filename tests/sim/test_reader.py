"""The simulator against the SimPy reader of any Plan, and the reader against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.random_levels import random_levels
from tests.sim.simpy_reader import read, read_all
from tests.sim.toys import ring, toy

from megatile.core.expr import Const, Expr, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.deadlock import PlanDeadlock
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.sim import simulate


def put_to_oneself() -> Plan:
    """The same storage, once as one's own and once named: 2 x 16 floats copied in, then read."""
    b = PlanBuilder("own", scale="core", units=2)
    x = b.tile("x", (16,), "f32", memory="local", role="input")
    y = b.tile("y", (16,), "f32", memory="local")
    z = b.tile("z", (16,), "f32", memory="local", role="output")
    b.copy(y.at(unit), x)
    b.compute("add", z, [y, y])
    return b.finish()


def test_what_a_unit_puts_to_itself_is_its_own() -> None:
    """The copy ends at 20 (startup) + 16 (64 B at 4 B/ps) + 10 (latency); the add waits for it."""
    run = read(put_to_oneself(), toy(2))
    assert run.times(0) == [("Compute", 0, 46), ("Compute", 46, 67)]


def test_the_reader_computes_and_times_a_ring() -> None:
    x = np.random.default_rng(0).integers(-3, 4, (5, 5, 16)).astype("f4")
    run, result = read(ring(5, 16), toy(5), {"x": x}), simulate(ring(5, 16), {"x": x}, machine=toy(5))
    assert run.time_ps == result.time_ps
    assert run.outputs is not None
    np.testing.assert_array_equal(run.outputs["x"], np.broadcast_to(x.sum(0), x.shape))


def test_the_reader_says_who_waits() -> None:
    b = PlanBuilder("stuck", scale="core", units=3)
    x = b.tile("x", (4,), "f32", memory="local", role="inout")
    c = b.channel("ring", source=(unit - 1) % 3, slot_bytes=16, memory="local", members=["W"])
    b.receive(c, (4,), "f32", into=x, member="W")
    b.send(c, x, to=(unit + 1) % 3, member="W")
    stuck = read(b.finish(), toy(3)).stuck
    assert [(s.unit, s.lacks, s.on, s.peers) for s in stuck] == [
        (u, "data", "ring.W", ((u - 1) % 3,)) for u in range(3)
    ]


@pytest.mark.parametrize("granule", [None, "32 B"])
def test_pieces_of_a_lone_message_arrive_as_fast_as_one(granule: str | None) -> None:
    """256 B at 1 B/ps: 20 startup, 10 out of memory, 100 + 256 over the link, 10 into memory."""
    b = PlanBuilder("one", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    c = b.channel("c", source=(unit - 1) % 2, slot_bytes=256, memory="local")
    with b.when(unit < 1):
        b.send(c, x, to=1)
    with b.when(unit > 0):
        b.receive(c, (64,), "f32", into=x)
    run = read(b.finish(), toy(2, "ring", network={"granule": granule} if granule else {}))
    assert run.times(0) == [("Send", 0, 276)]
    assert run.times(1)[0][1] == 396


def test_a_barrier_waits_for_what_others_will_get() -> None:
    """A copy to oneself ends at 20 + 64 + 10; only then the barrier (2 x 100 ps) begins to count."""
    b = PlanBuilder("get", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="local", role="input")
    far, got = (b.tile(name, (64,), "f32", memory="local", role="output") for name in ("far", "got"))
    b.copy(far, x)
    b.barrier(b.group("all"))
    b.copy(got, far.at(1 - unit))
    values = np.arange(128, dtype="f4").reshape(2, 64)
    run = read(b.finish(), toy(2), {"x": values})
    assert run.times(0)[:2] == [("Compute", 0, 94), ("Collective", 0, 294)]
    assert run.outputs is not None
    np.testing.assert_array_equal(run.outputs["got"], values[::-1])


def blocks(count: int, slots: int | None, length: Expr) -> Plan:
    """Blocks of a launch on the cores of one box; block k adds up ``length`` floats."""
    b = PlanBuilder("blocks", scale="device", units=1)
    level = b.level("block", scale="core", grid=count, parent="device", slots=slots)
    t = b.tile("t", (64,), "f32", memory="local", level=level)
    with b.stream(level=level):
        b.compute("add", t[0:length], [t[0:length], t[0:length]])
    return b.finish()


def test_blocks_take_the_first_slot_that_becomes_free() -> None:
    """Four cores; block k takes 5 + (7 k mod 40) + 1 ps. What a list scheduler does, by hand."""
    run = read(blocks(11, 1, unit * 7 % 40 + 1), toy(4))
    free = [0] * 4
    for block in range(11):
        core = free.index(min(free))
        start, free[core] = free[core], free[core] + 5 + block * 7 % 40 + 1
        assert run.times(block) == [("Compute", start, free[core])]
    assert run.time_ps == max(free)


def test_two_slots_share_the_engines_of_a_core() -> None:
    """Two blocks at a time on each of four cores, one vector engine each: 21 ps for 16 floats."""
    run = read(blocks(8, 2, Const(16)), toy(4))
    assert [run.times(block)[0][1:] for block in range(8)] == [(0, 21)] * 4 + [(21, 42)] * 4


def test_launches_on_different_cores_overlap_and_those_on_the_same_queue() -> None:
    def work(at: int) -> Plan:
        b = PlanBuilder("work", scale="core", units=2, placement=unit + at)
        t = b.tile("t", (16,), "f32", memory="local")
        b.compute("add", t, [t, t])
        return b.finish()

    runs = read_all([(work(0), 0), (work(2), 0), (work(1), 3)], toy(4))
    assert [[run.times(u)[0][1:] for u in range(2)] for run in runs] == [
        [(0, 21), (0, 21)],
        [(0, 21), (0, 21)],
        [(21, 42), (21, 42)],
    ]


@pytest.mark.parametrize("first", [0, 60])
def test_levels_are_read_as_they_are_checked_and_executed(first: int) -> None:
    """Stuck or not as `check` says, and with the data that `execute` computes without time."""
    for seed in range(first, first + 20):
        case = random_levels(seed)
        run = read(case.plan, case.hda, case.inputs, faults=case.faults)
        try:
            check(case.plan, case.hda)
            assert not run.stuck, seed
        except PlanDeadlock:
            assert run.stuck, seed
        if case.inputs is not None and not run.stuck:
            assert run.outputs is not None
            np.testing.assert_array_equal(run.outputs["x"], execute(case.plan, case.inputs)["x"])
