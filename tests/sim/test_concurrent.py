"""Launches beside each other on one machine: overlap, queues of units, messages between launches."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tests.sim.concurrent_cases import WORK, pingpong, work
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan, PlanError
from megatile.sim import Deadlock, Session, SessionError, TimeBudgetExceeded, simulate
from megatile.trace import Trace


def events(trace: Trace, operation: str) -> list[tuple[str, int, int]]:
    return [(e.unit, e.start_ps, e.end_ps) for e in trace if e.operation == operation]


def test_launches_on_different_units_overlap() -> None:
    s = Session(toy(4))
    one, two = s.submit(work(0)), s.submit(work(2, times=2))
    assert [r.time_ps for r in s.wait()] == [WORK, 2 * WORK]
    assert (one.end_ps, two.end_ps, s.time_ps) == (WORK, 2 * WORK, 2 * WORK)


def test_two_sips_take_the_time_of_one() -> None:
    def on(sip: int) -> Plan:
        b = PlanBuilder(f"sip{sip}", scale="pe", units=8, placement=unit + 128 * sip)
        x = b.tile(f"x{sip}", (4096,), "f16", memory="tcm", role="inout")
        b.compute("add", x, [x, x])
        return b.finish()

    alone = simulate(on(0), machine="ahbm").time_ps
    with Session("ahbm") as s:
        s.submit(on(0)), s.submit(on(1))
        s.wait()
    assert s.time_ps == alone


def test_launches_on_the_same_units_queue_in_order() -> None:
    x = np.arange(128, dtype="f4").reshape(2, 64)
    with Session(toy(4)) as s:
        handles = [s.submit(work(), {"x0": x} if not i else None) for i in range(3)]
        handles.append(s.submit(work(1), {"x1": x}))  # shares one core with them
        results = s.wait()
    assert [h.end_ps for h in handles] == [WORK, 2 * WORK, 3 * WORK, 4 * WORK]
    np.testing.assert_array_equal(s.read("x0"), 8 * x)
    np.testing.assert_array_equal(results[0].outputs["x0"], 2 * x)
    assert events(results[1].trace, "wait for the unit") == [("core0", 0, WORK), ("core1", 0, WORK)]
    assert events(results[3].trace, "wait for the unit") == [("core1", 0, 3 * WORK)]
    assert s.trace.end_ps == s.time_ps
    assert sum(step.adds_ps for step in s.critical_path) == s.time_ps


def test_inputs_belong_to_their_launch() -> None:
    x, y = (np.full((2, 64), v, "f4") for v in (1, 10))
    s = Session(toy(2))
    s.submit(work(), {"x0": x}), s.submit(work(), {"x0": y})
    first, second = s.wait()
    assert (first.outputs["x0"] == 2).all()
    assert (second.outputs["x0"] == 20).all()


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_two_launches_exchange_messages(engine: str) -> None:
    """The same plan as two launches of one unit each: data and times are those of one launch of both."""
    plan, hda = pingpong(), toy(2, "ring")
    x = np.random.default_rng(0).integers(-9, 9, (2, 16)).astype("f4")
    whole = simulate(plan, {"x": x}, machine=hda)
    with Session(hda, engine=engine) as s:
        for u in (1, 0):
            s.submit(plan.part([u]), {"x": x})
        results = s.wait()
    np.testing.assert_array_equal(s.read("x"), whole.outputs["x"])
    assert s.time_ps == whole.time_ps
    assert max(r.time_ps for r in results) == whole.time_ps
    both = s.trace
    assert sorted(events(both, "send")) == sorted(events(whole.trace, "send"))
    assert len(both.flows) == len(whole.trace.flows) == 6
    assert sum(step.adds_ps for step in s.critical_path) == s.time_ps
    assert {w.unit for w in (both[i] for i in both.flows.reshape(-1))} == {"core0", "core1"}


def test_two_sips_exchange_messages() -> None:
    plan = pingpong(scale="pe", memory="tcm", placement=unit * 128)
    x = np.arange(32, dtype="f4").reshape(2, 16)
    alone = simulate(plan, {"x": x}, machine="ahbm")
    with Session("ahbm") as s:
        s.install(plan, [1]), s.install(plan, [0])
        begin = s.time_ps
        a, b = (s.submit(plan.part([u]), {"x": x}) for u in range(2))
        s.wait()
        assert s.pointers().pointers[1].unit == "sip1/cube0/pe0"
    np.testing.assert_array_equal(s.read("x"), alone.outputs["x"])
    assert a.end_ps > b.submit_ps  # they overlap
    assert s.time_ps - begin == alone.time_ps - 783_000
    units = {e.unit for e in s.trace if e.operation == "send"}
    assert units == {"sip0/cube0/pe0", "sip1/cube0/pe0"}


def test_messages_stay_in_their_queue_between_launches() -> None:
    """Three messages into four slots; the receiver comes later, twice, and takes them in order."""

    def sender() -> Plan:
        b = PlanBuilder("sender", scale="core", units=2)
        x = b.tile("x", (3, 4), "f32", memory="local", role="input")
        c = b.channel("c", source=unit - 1, slot_bytes=16, memory="local", slots=4, installed=True)
        with b.loop(0, 3) as loop:
            b.send(c, x[loop.index], to=1)
        return b.finish().part([0])

    def receiver(count: int) -> Plan:
        b = PlanBuilder(f"receiver{count}", scale="core", units=2)
        y = b.tile(f"y{count}", (count, 4), "f32", memory="local", role="output")
        c = b.channel("c", source=unit - 1, slot_bytes=16, memory="local", slots=4, installed=True)
        with b.loop(0, count) as loop:
            b.receive(c, (1, 4), "f32", into=y[loop.index])
        return b.finish().part([1])

    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    s = Session(toy(2))
    s.launch(sender(), {"x": x})
    ends = {p.direction: p for p in s.pointers().pointers}
    assert (ends["->c[0]"].my_head, ends["c[0]"].peer_head_cache, ends["c[0]"].my_tail) == (3, 3, 0)
    s.launch(receiver(1), data=True), s.launch(receiver(2), data=True)
    np.testing.assert_array_equal(s.read("y1")[1], x[0, :1])
    np.testing.assert_array_equal(s.read("y2")[1], x[0, 1:])
    ends = {p.direction: p for p in s.pointers().pointers}
    assert (ends["->c[0]"].peer_tail_cache, ends["c[0]"].my_tail) == (3, 3)


def test_a_launch_whose_partner_never_comes_waits_for_it() -> None:
    s, plan = Session(toy(2)), pingpong()
    one = s.submit(plan.part([0]))
    with pytest.raises(TimeBudgetExceeded, match="has not ended within the time given"):
        s.wait(one, budget_ps=50)
    assert s.time_ps == 50
    s.submit(plan.part([1]))
    assert s.wait(one).time_ps > 50


def test_budgets() -> None:
    for budget in ({"budget_ps": 1000}, {"seconds": 0}):
        s = Session(toy(2))
        slow = s.submit(work(times=20_000))
        with pytest.raises(TimeBudgetExceeded):
            s.wait(slow, **budget)
        assert s.wait(slow).time_ps == 20_000 * WORK


def test_what_has_not_begun_can_be_cancelled() -> None:
    s = Session(toy(2))
    x = np.ones((2, 64), "f4")
    first = s.submit(work(), {"x0": x})
    second, third = s.submit(work(times=9)), s.submit(work())
    later = s.submit(work(times=3), at=5 * WORK)
    s.cancel(second)
    s.wait(first)
    with pytest.raises(SessionError, match="cannot be cancelled: it is over"):
        s.cancel(first)
    s.cancel(later)
    with pytest.raises(TimeBudgetExceeded):
        s.wait(third, budget_ps=5)
    with pytest.raises(SessionError, match=r"Launch\(2: work, running\) cannot be cancelled: it has begun"):
        s.cancel(third)
    s.wait(third)
    assert third.end_ps == 2 * WORK
    assert (s.read("x0") == 4).all()
    assert [entry.name for entry in s.launches] == ["work", "work"]
    with pytest.raises(SessionError, match="was cancelled"):
        s.wait(second)


def blocks(count: int, slots: int | None, times: int = 1) -> Plan:
    """Blocks of a device that add, and the device itself, which adds before them."""
    b = PlanBuilder("blocks", scale="device", units=1)
    level = b.level("block", scale="core", grid=count, parent="device", slots=slots)
    y = b.tile("y", (64,), "f32", memory="local", level=level)
    with b.stream(level=level), b.loop(0, times):
        b.compute("add", y, [y, y])
    return b.finish()


@pytest.mark.parametrize(("count", "slots"), [(2, None), (2, 1), (7, 1), (7, 2)])
def test_blocks_that_have_not_begun_can_be_cancelled(count: int, slots: int | None) -> None:
    plan, other = blocks(count, slots), blocks(count, slots, times=3)
    alone, s = Session(toy(2)), Session(toy(2))
    expected = [alone.submit(plan), alone.submit(plan)]
    alone.wait()
    first, second, third = s.submit(plan), s.submit(other), s.submit(plan)
    s.cancel(second)
    later = s.submit(other, at=10_000)
    s.cancel(later)
    s.wait()
    assert [first.end_ps, third.end_ps] == [launch.end_ps for launch in expected]
    assert [entry.name for entry in s.launches] == ["blocks", "blocks"]
    begun, again = s.submit(other), alone.submit(other)
    with pytest.raises(TimeBudgetExceeded):
        s.wait(begun, budget_ps=5)
    with pytest.raises(SessionError, match="cannot be cancelled: it has begun"):
        s.cancel(begun)
    assert s.wait(begun).time_ps == alone.wait(again).time_ps


def test_a_submit_before_the_time_that_has_passed_is_refused() -> None:
    s = Session(toy(2))
    s.launch(work())
    with pytest.raises(SessionError, match=r"cannot be submitted at 3 ps: it is already 69 ps"):
        s.submit(work(), at=3)
    assert s.wait(s.submit(work(), at=100)).time_ps == WORK
    assert s.time_ps == 100 + WORK


def test_only_a_part_of_a_plan_leaves_out_streams() -> None:
    part = work().part([1])
    assert Plan.from_text(str(part)) == Plan.from_json(part.to_json()) == part
    with pytest.raises(PlanError, match="unit 0 has 0 streams, not one"):
        Session(toy(2)).submit(replace(part, partial=False))
    s = Session(toy(2))
    assert s.launch(part, {"x0": np.ones((2, 64), "f4")}).outputs["x0"][1, 0] == 2
    assert {event.unit for event in s.trace} == {"core1"}


def test_many_launches_take_no_more_memory() -> None:
    plans, s = [work(0), work(2), pingpong().part([0]), pingpong().part([1])], Session(toy(4), record=5000)
    second = plans[1]

    def some(n: int) -> int:
        """A launch is always under way, so the engine's memory is never given back whole."""
        last = [s.submit(second)]
        for _ in range(n):
            now = [s.submit(plan) for plan in plans]
            s.wait(*last)
            last = now
        s.wait()
        return s.simulation.arena.words

    some(10)
    before = some(50)
    assert some(250) == before


def test_the_history_keeps_little_of_a_launch_whose_records_are_dropped() -> None:
    plan, s = work(0), Session(toy(4), record=20)

    def some(n: int) -> None:
        for _ in range(n):
            s.submit(plan)
            s.wait()

    some(30)
    tracemalloc.start()
    some(200)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 200 * 1000, size
    assert s.launches[0].took_ps == s.launches[-1].took_ps > 0
    assert s.summary().count(plan.name) == 230


def test_a_launch_says_in_which_state_it_is() -> None:
    s = Session(toy(2))
    first, second, third = (s.submit(work()) for _ in range(3))
    assert {launch.state for launch in (first, second, third)} == {"submitted"}
    s.cancel(third)
    s.wait(first)
    with pytest.raises(TimeBudgetExceeded):
        s.wait(second, budget_ps=5)
    assert [launch.state for launch in (first, second, third)] == ["done", "running", "cancelled"]
    s.wait(second)
    assert repr(second) == "Launch(1: work, done)"
    alone = s.submit(pingpong().part([0]))
    with pytest.raises(Deadlock):
        s.wait(alone)
    assert alone.state == "failed"
