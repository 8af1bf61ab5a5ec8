"""``sim/data_runs.py``: the data of concurrent launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.sim.concurrent_cases import work
from tests.sim.simpy_reader import read_all
from tests.sim.toys import toy

from megatile.core.expr import eq, select, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.model import Plan
from megatile.sim import InstallError, Session


def test_a_read_number_and_receive_from_any_across_launches() -> None:
    """The number that unit 0 reads comes from whichever launch sends first."""
    b = PlanBuilder("any", scale="core", units=3)
    x = b.tile("x", (1,), "i32", memory="local", role="input")
    y = b.tile("y", (64,), "f32", memory="local", role="inout")
    got = b.tile("got", (1,), "i32", memory="local", role="output")
    c = b.channel(
        "c",
        source=select(eq(unit, 0), _member() + 1, -1),
        slot_bytes=4,
        memory="local",
        members=2,
        installed=True,
    )
    with b.when(eq(unit, 0)) as branch:
        m, _ = b.receive_any(c, (1,), "i32", members=(0, 1))
        b.copy(got, m)
        with b.loop(0, b.read_scalar(got[0:1], bound=9, name="times")):
            b.compute("add", y, [y, y])
        b.receive_any(c, (1,), "i32", members=(0, 1))
    with branch.otherwise():
        b.send(c, x, to=0, member=unit - 1)
    plan = b.finish()
    values = {"x": np.array([[0], [2], [5]], "i4"), "y": np.ones((3, 64), "f4")}
    for first, times in ((1, 2), (2, 5)):
        s = Session(toy(3))
        s.submit(plan.part([0]), values)
        s.submit(plan.part([first]), values)
        s.submit(plan.part([3 - first]), values, at=400)
        result = s.wait()[0]
        assert (result.outputs["got"][0], result.outputs["y"][0, 0]) == (times, 2**times)
        assert result.choices == {0: [first - 1, 2 - first]}


def _member():
    from megatile.core.expr import member

    return member


def mail(name: str, units: list[int], takes: int = 0, last: int = -1) -> Plan:
    """Core 0 sends core 1 five messages through ``c``; core 1 takes some of them. Core 2 sends one through
    ``d`` to core ``last``, which waits for it first."""
    b = PlanBuilder(name, scale="core", units=4)
    x = b.tile("x", (5, 4), "f32", memory="local", role="input")
    got = b.tile(f"got_{name}", (max(1, takes), 4), "f32", memory="local", role="inout")
    c = b.channel("c", source=select(eq(unit, 1), 0, -1), slot_bytes=16, memory="local", installed=True)
    d = b.channel("d", source=select(eq(unit, 2), -1, 2), slot_bytes=16, memory="local", installed=True)
    with b.when(eq(unit, 0)), b.loop(0, 5) as loop:
        b.send(c, x[loop.index], to=1)
    with b.when(eq(unit, 2)):
        b.send(d, x[0], to=1 if last < 0 else last)
    with b.when(eq(unit, last)):
        b.receive(d, (1, 4), "f32", into=got[0])
    with b.when(eq(unit, 1)), b.loop(0, takes) as loop:
        b.receive(c, (1, 4), "f32", into=got[loop.index])
    return b.finish().part(units)


@pytest.mark.parametrize(("units", "last"), [([1], 1), ([1, 3], 3)])
def test_messages_go_to_the_launch_whose_turn_it_is(units: list[int], last: int) -> None:
    """The first launch on core 1 waits for core 2, there or on core 3; the second must not take its messages,
    nor the first those of the second."""
    s, x = Session(toy(4)), np.zeros((4, 5, 4), "f4") + np.arange(1, 6)[:, None]
    got = {f"got_{name}": np.zeros((4, n, 4), "f4") for name, n in (("a", 3), ("b", 2))}
    s.submit(mail("sender", [0]), {"x": x, "got_sender": np.zeros((4, 1, 4), "f4")})
    s.submit(mail("a", units, 3, last), {"x": x, "got_a": got["got_a"]})
    s.submit(mail("b", [1], 2), {"x": x, "got_b": got["got_b"]})
    late = mail("late", [2], last=last)
    s.submit(late, {"x": x, "got_late": np.zeros((4, 1, 4), "f4")}, at=1_000_000)
    s.wait()
    assert s.read("got_a")[1, :, 0].tolist() == [1, 2, 3]
    assert s.read("got_b")[1, :, 0].tolist() == [4, 5]


def test_many_launches_with_data_wait_for_their_turn() -> None:
    plan, s = work(0, 4), Session(toy(4))
    for i in range(300):
        s.submit(plan, {"x0": np.zeros((4, 64), "f4")} if i == 0 else None)
    assert len(s.wait()) == 300


def test_a_launch_may_begin_on_some_units_while_one_before_needs_it() -> None:
    """The second launch waits for the first on core 1 and sends it something from core 2."""
    b = PlanBuilder("first", scale="core", units=3)
    x = b.tile("x", (4,), "f32", memory="local", role="inout")
    c = b.channel("c", source=select(eq(unit, 0), 2, -1), slot_bytes=16, memory="local", installed=True)
    b.compute("add", x, [x, x])
    with b.when(eq(unit, 0)):
        b.compute("add", x, [x, b.receive(c, (4,), "f32")])
    first = b.finish().part([0, 1])
    b = PlanBuilder("second", scale="core", units=3)
    x = b.tile("x", (4,), "f32", memory="local", role="inout")
    c = b.channel("c", source=select(eq(unit, 0), 2, -1), slot_bytes=16, memory="local", installed=True)
    b.compute("add", x, [x, x])
    with b.when(eq(unit, 2)):
        b.send(c, x, to=0)
    second = b.finish().part([1, 2])
    s = Session(toy(3))
    s.submit(first, {"x": np.ones((3, 4), "f4")})
    s.submit(second, {"x": np.full((3, 4), 5, "f4")})
    one, two = s.wait()
    assert one.outputs["x"][:2, 0].tolist() == [12, 2]
    assert two.outputs["x"][1:, 0].tolist() == [10, 10]


def test_installed_flags_count_on_and_others_begin_at_0() -> None:
    """Unit 0 signals, unit 1 of another launch waits for the third signal; both read by the reader too."""
    b = PlanBuilder("flags", scale="core", units=2)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    flag, own = b.flag("ready", installed=True), b.flag("own")
    with b.when(eq(unit, 0)) as branch:
        b.compute("add", x, [x, x])
        b.signal(flag, to=1)
    with branch.otherwise():
        b.signal(own, to=1)
        b.wait(own, 1)
        b.wait(flag, 3)
        b.compute("add", x, [x, x])
    plan = b.finish()
    check(plan.part([1]))
    sends, waits = plan.part([0]), plan.part([1])
    order = [(waits, 0), (sends, 10), (sends, 10), (sends, 2000), (waits, 2100)]
    runs = read_all(order, toy(2, "ring"), installed=True)
    s = Session(toy(2, "ring"))
    handles = [s.submit(part, {"x": np.ones((2, 64), "f4")}, at=at) for part, at in order]
    results = s.wait()
    assert [h.end_ps for h in handles] == [run.time_ps for run in runs]
    assert handles[0].end_ps > 2000
    assert [r.outputs["x"][u, 0] for r, u in zip(results, (1, 0, 0, 0, 1), strict=True)] == [2] * 5
    with pytest.raises(InstallError, match="flag 'ready' of plan 'flags' already exists with 1 members"):
        s.submit(replace(plan, flags=(replace(flag, members=2), own)))
