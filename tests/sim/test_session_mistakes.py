"""Sessions as they are used and misused: one sentence for every mistake, and the session can go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.sim.toys import toy

import megatile as mt
from megatile.collectives.planner import predict
from megatile.core.errors import MegatileError
from megatile.core.expr import eq, member, select, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.plan.races import RaceError
from megatile.sim import Deadlock, Session, SessionError, simulate
from megatile.timing import Resources


def work(times: int = 1) -> Plan:
    b = PlanBuilder("work", scale="core", units=1)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    with b.loop(0, times):
        b.compute("add", x, [x, x])
    return b.finish()


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda s, h: s.wait("h"), "'h' is not a launch of this session"),
        (lambda s, h: s.wait(Session(toy(1)).submit(work())), "is not a launch of this session"),
        (lambda s, h: s.cancel(3), "3 is not a launch of this session"),
        (lambda s, h: s.wait(h, budget_ps="1 ms"), "budget_ps='1 ms' is not an integer"),
        (lambda s, h: s.wait(h, budget_ps=-1), "budget_ps=-1 is not an integer"),
        (
            lambda s, h: s.wait(h, seconds="soon"),
            "seconds must be a non-negative number of seconds, got 'soon'",
        ),
        (
            lambda s, h: s.wait(h, seconds=float("nan")),
            "seconds must be a non-negative number of seconds, got nan",
        ),
        (lambda s, h: s.submit(work(), at=1.5), "at=1.5 is not an integer"),
        (lambda s, h: s.submit(work(), worker="me"), "'me' is not a worker of this session"),
        (lambda s, h: s.launch(work(), worker=Session(toy(1)).host), "is not a worker of this session"),
        (lambda s, h: Session(toy(1), record=-1), "record=-1 is not an integer"),
    ],
)
def test_a_mistake_is_one_sentence_and_the_session_goes_on(mistake: Any, says: str) -> None:
    s = Session(toy(1))
    handle = s.submit(work())
    with pytest.raises(SessionError, match=says):
        mistake(s, handle)
    assert s.wait(handle).time_ps == 69
    s.launch(work())


def test_a_worker_closes_once_or_twice() -> None:
    s = Session(toy(1))
    worker = s.worker()
    worker.close(), worker.close()
    assert s.workers == [s.host]


@pytest.mark.parametrize("name", ["run-ahead", "arrays", "bucket", "copiled"])
def test_unknown_engines_are_refused(name: str) -> None:
    for call in (
        lambda: mt.simulate(work(), machine=toy(1), engine=name),
        lambda: Session(toy(1), engine=name),
    ):
        with pytest.raises(MegatileError, match=f"no engine '{name}'"):
            call()


def test_races_are_found_in_sessions_too() -> None:
    b = PlanBuilder("race", scale="core", units=2)
    x = b.tile("x", (4,), "f32", memory="common", role="output", owner=unit * 0, owners=1)
    t = b.tile("t", (4,), "f32", memory="local")
    b.compute("fill", t, value=1.0)
    b.copy(x, t)
    with pytest.raises(RaceError, match="race on tile 'x'"):
        Session(toy(2)).launch(b.finish(), data=True)


def test_results_of_launches_that_read_numbers_can_be_retimed() -> None:
    b = PlanBuilder("reads", scale="core", units=1)
    n = b.tile("n", (1,), "i32", memory="local", role="input")
    y = b.tile("y", (64,), "f32", memory="local", role="inout")
    with b.loop(0, b.read_scalar(n[0:1], bound=9, name="times")):
        b.compute("add", y, [y, y])
    values = {"n": np.array([[5]], "i4"), "y": np.ones((1, 64), "f4")}
    for result in (Session(toy(1)).launch(b.finish(), values), simulate(b.finish(), values, machine=toy(1))):
        assert result.outputs["y"][0, 0] == 32
        assert result.retime({}) == result.time_ps == 5 * 69


@pytest.mark.parametrize("record", [0, 1 << 18])
def test_what_came_first_is_known_without_records(record: int) -> None:
    b = PlanBuilder("any", scale="core", units=3)
    x = b.tile("x", (1,), "f32", memory="local", role="input")
    y = b.tile("y", (64,), "f32", memory="local")
    got = b.tile("got", (2,), "f32", memory="local", role="output")
    c = b.channel("c", source=select(eq(unit, 0), member + 1, -1), slot_bytes=4, memory="local", members=2)
    with b.when(eq(unit, 0)) as branch:
        for i in range(2):
            message, _ = b.receive_any(c, (1,), "f32", members=(0, 1))
            b.copy(got[i : i + 1], message)
    with branch.otherwise():
        with b.when(eq(unit, 1)):
            with b.loop(0, 20):
                b.compute("fill", y, value=1.0)
            b.copy(y[0:1], x)
        b.send(c, x, to=0, member=unit - 1)
    values = {"x": np.arange(3, dtype="f4").reshape(3, 1)}
    plan = b.finish()
    result = Session(toy(3), record=record).launch(plan, values)
    again = simulate(plan, values, machine=toy(3), record=bool(record))
    assert result.choices == again.choices
    np.testing.assert_array_equal(result.outputs["got"][0], again.outputs["got"][0])


def test_a_collective_of_a_library_has_its_time_and_its_devices() -> None:
    """Alone it takes what simulate says; a kernel behind it on one of the devices waits for all of it."""
    found = predict("all_reduce", machine="dgx-h100", nbytes=1 << 20, dtype="f16")
    alone = simulate(found.plan, machine="dgx-h100", installed=True)
    b = PlanBuilder("kernel", scale="device", units=1)
    x = b.tile("own", (1 << 14,), "f16", memory="hbm", role="inout")
    b.compute("exp", x, [x])
    kernel = simulate(b.finish(), machine="dgx-h100")
    with Session("dgx-h100") as s:
        collective, behind = s.submit(found.plan), s.submit(b.finish())
        s.wait()
    assert collective.result.time_ps == alone.time_ps
    began = Resources(s.machine, b.plan).start_ps(0)
    assert behind.end_ps == collective.end_ps + kernel.time_ps - began
    assert s.trace.end_ps == s.time_ps


def test_pointers_and_deadlocks_have_the_same_names_and_the_time() -> None:
    b = PlanBuilder("circle", scale="core", units=2)
    x = b.tile("own", (8,), "f32", memory="local", role="inout")
    c = b.channel("c", source=1 - unit, slot_bytes=32, memory="local", slots=1, installed=True)
    b.receive(c, (8,), "f32", into=x)
    b.send(c, x, to=1 - unit)
    s = Session(toy(2, control=True))
    s.launch(work(10))
    for u in range(2):
        s.submit(b.finish().part([u]))
    with pytest.raises(Deadlock) as caught:
        s.wait()
    graph = caught.value.graph
    assert {(p.unit, p.direction) for p in graph.pointers} == {
        (p.unit, p.direction) for p in s.pointers().pointers
    }
    assert graph.time_ps >= s.launches[0].end_ps


def passing(taken: int = 8) -> Plan:
    """Unit 0 sends 8 elements to unit 1, which takes ``taken``; unit 2 works for a long time."""
    b = PlanBuilder("passing", scale="core", units=3)
    x = b.tile("x", (8,), "f32", memory="local", role="inout")
    c = b.channel("c", source=unit - 1, slots=2, slot_bytes=64, memory="local", installed=True)
    with b.stream([0]):
        b.send(c, x, to=1)
    with b.stream([1]):
        b.receive(c, (taken,), "f32", into=x[0:taken])
    with b.stream([2]), b.loop(0, 100):
        b.compute("exp", x, [x])
    return b.finish()


def test_misused_queues_fail_all_launches_under_way() -> None:
    s = Session(toy(3))
    s.submit(passing().part([0]))
    working, misusing = s.submit(passing().part([2])), s.submit(passing(4).part([1]))
    with pytest.raises(MegatileError, match="messages of other sizes"):
        s.wait()
    assert (working.state, misusing.state) == ("failed", "failed")
    with pytest.raises(SessionError, match=r"this session is over: launch 2 .'passing'. misused its queues"):
        s.submit(work())


def test_a_refused_launch_declares_no_flags() -> None:
    def flagged(members: int) -> Plan:
        b = PlanBuilder("flagged", scale="core", units=1)
        x = b.tile("x", (4,), "f32", memory="local", role="inout")
        b.flag("f", members=members, installed=True)
        b.compute("add", x, [x, x])
        return b.finish()

    s = Session(toy(1))
    with pytest.raises(SessionError, match="'x' of plan 'flagged' is not in memory"):
        s.submit(flagged(1), data=True)
    s.launch(flagged(2), {"x": np.zeros((1, 4), "f4")})
