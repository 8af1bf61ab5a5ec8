"""Launches beside each other on one machine: overlap, queues of units, messages between launches."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.sim.simpy_reader import read_all
from tests.sim.toys import toy

from megatile.core.expr import eq, select, unit
from megatile.language import tl
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.model import Plan, PlanError
from megatile.sim import Deadlock, InstallError, Session, SessionError, TimeBudgetExceeded, simulate
from megatile.trace import Trace

WORK = 69
"""One add of 64 floats on a core of the toy machine."""


def work(first: int = 0, units: int = 2, times: int = 1, name: str = "work") -> Plan:
    """``times`` adds of 64 floats on cores from ``first`` on."""
    b = PlanBuilder(name, scale="core", units=units, placement=unit + first)
    x = b.tile(f"x{first}", (64,), "f32", memory="local", role="inout")
    with b.loop(0, times):
        b.compute("add", x, [x, x])
    return b.finish()


def pingpong(rounds: int = 3, slots: int = 2, scale: str = "core", memory: str = "local", **options) -> Plan:
    """Two units send each other what they have and add what they get."""
    b = PlanBuilder("pingpong", scale=scale, units=2, **options)
    x = b.tile("x", (16,), "f32", memory=memory, role="inout")
    c = b.channel("c", source=1 - unit, slot_bytes=64, memory=memory, slots=slots, installed=True)
    with b.loop(0, rounds):
        b.send(c, x, to=1 - unit)
        b.compute("add", x, [x, b.receive(c, (16,), "f32")])
    return b.finish()


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


def test_three_launches_that_wait_for_each_other_are_a_deadlock() -> None:
    def circle(t_ptr, n, tl):
        mine = t_ptr + tl.program_id(0) * n * 2
        tl.store(mine, tl.recv(dir="W", shape=(n,)))
        tl.send(dir="E", src=tl.load(mine, (n,)))

    plan = tl.read_kernel(circle, [tl.Tensor("t", (8,)), 8], world_size=3)
    b = PlanBuilder("later", scale="pe", units=1)
    x = b.tile("x", (4,), "f32", memory="tcm", role="inout")
    b.compute("add", x, [x, x])
    s = Session("ahbm")
    for u in range(3):
        s.submit(plan.part([u]))
    s.submit(b.finish())  # waits behind the first of them
    with pytest.raises(Deadlock) as error:
        s.wait()
    graph = error.value.graph
    pe0, pe1, pe2 = (f"sip0/cube0/pe{u}" for u in range(3))
    assert [w.unit for w in graph.cycle()] == [pe0, pe2, pe1]
    launches = {f"launch {u} 'circle'" for u in range(3)}
    assert {w.launch for w in graph.waiters} == launches | {"launch 3 'later'"}
    text = str(error.value)
    assert "launch 0 ('circle'), launch 1 ('circle'), launch 2 ('circle')" in text
    assert "test_concurrent.py:" in text
    assert f"{pe0}: begin of launch 3 'later' lacks unit" in text
    names = {p.unit for p in s.pointers().pointers}
    assert names == {p.unit for p in graph.pointers} == {pe0, pe1, pe2}
    with pytest.raises(SessionError, match=r"this session is over: launch 0 .* are deadlocked"):
        s.launch(plan)


def test_plans_by_hand_in_a_circle_name_their_lines() -> None:
    b = PlanBuilder("ring", scale="pe", units=3)
    x = b.tile("x", (4,), "f32", memory="tcm", role="inout")
    ring = b.channel("ring", source=(unit - 1) % 3, slot_bytes=16, memory="tcm", installed=True)
    b.receive(ring, (4,), "f32", into=x)
    line = sys._getframe().f_lineno - 1
    b.send(ring, x, to=(unit + 1) % 3)
    plan, s = b.finish(), Session("ahbm")
    for u in range(3):
        s.submit(plan.part([u]), data=False)
    with pytest.raises(Deadlock) as error:
        s.wait()
    graph = error.value.graph
    assert {w.launch for w in graph.cycle()} == {f"launch {u} 'ring'" for u in range(3)}
    assert {w.source.rpartition("/")[2] for w in graph.cycle()} == {f"test_concurrent.py:{line}"}
    assert plan.digest == Plan.from_json(plan.to_json()).digest


def test_signals_in_a_circle_say_who_would_send_them() -> None:
    def turn(u: int) -> Plan:
        b = PlanBuilder(f"turn{u}", scale="pe", units=3)
        b.wait(b.flag("turn", installed=True), 1)
        b.signal(b.flag("turn"), to=(u + 1) % 3)
        return b.finish().part([u])

    s = Session("ahbm")
    for u in range(3):
        s.submit(turn(u))
    with pytest.raises(
        Deadlock, match=r"pe1: wait of launch 1 'turn1' at .* lacks signal on turn from .*pe0"
    ):
        s.wait()


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


def test_every_worker_has_a_clock() -> None:
    """Two workers of a host, each launching on its own cores; time passes while both wait."""
    s = Session(toy(4, control=True))
    trip = 1940
    a, b = s.worker("a"), s.worker("b")
    a.block(a.submit(work(0)))
    with pytest.raises(SessionError, match=r"Worker\(b, 0 ps\) is not blocked"):
        s.advance()
    b.block(b.submit(work(2, times=3)))
    assert s.advance() == [a]
    a.results()
    assert a.clock_ps == s.now_ps == trip + WORK
    a.block(a.submit(work(0, times=10)))  # in time, although it was not known before
    assert s.advance() == [b]
    b.results()
    assert b.clock_ps == trip + 3 * WORK
    b.block(b.submit(work(2)))
    assert s.advance() == [b]
    b.results(), b.block()
    assert s.advance() == [b]  # nothing left to wait for
    b.results()
    assert a.blocked
    assert s.wait(*a.waits_for).time_ps == trip + 10 * WORK
    assert [e.submit_ps for e in s.launches] == [0, 0, trip + 3 * WORK, trip + WORK]


def test_a_submit_before_the_time_that_has_passed_is_refused() -> None:
    s = Session(toy(2))
    s.launch(work())
    with pytest.raises(SessionError, match=r"cannot be submitted at 3 ps: it is already 69 ps"):
        s.submit(work(), at=3)
    assert s.wait(s.submit(work(), at=100)).time_ps == WORK
    assert s.time_ps == 100 + WORK


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


def test_units_are_installed_one_by_one_and_once() -> None:
    plan, s = pingpong(), Session(toy(2, control=True))
    assert s.install(plan, [1]) == 1940
    with pytest.raises(InstallError, match="core 1 already has queues"):
        s.install(plan)
    assert s.install(plan, [0]) == 1940
    for units in ([2], [-1]):
        with pytest.raises(SessionError, match="has units 0 to 1"):
            s.install(plan, units)
    assert [(e.unit_count, e.submit_ps) for e in s._installs] == [(1, 0), (1, 1940)]
    assert s.launch(plan).time_ps == simulate(plan, machine=toy(2, control=True)).time_ps - 1940


def test_the_channel_of_two_launches_must_be_one() -> None:
    s = Session(toy(2))
    s.submit(pingpong().part([0]))
    with pytest.raises(InstallError, match="has slots 2, the plan needs 3"):
        s.submit(pingpong(slots=3).part([1]))


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
