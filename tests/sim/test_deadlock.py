"""Deadlocks: who waits for whom, on which channel, at which line, with all queue pointers."""

from __future__ import annotations

import sys

import pytest
from tests.sim.toys import toy

from megatile.core.errors import Place
from megatile.core.expr import eq, unit
from megatile.language import tl
from megatile.plan.build import PlanBuilder
from megatile.plan.follow import PlanDeadlock
from megatile.plan.model import Plan
from megatile.sim import Deadlock, Session, SessionError, simulate


def both_receive_first(n: int = 3) -> Plan:
    b = PlanBuilder("stuck", scale="core", units=n)
    x = b.tile("x", (4,), "f32", memory="local", role="inout")
    c = b.channel("ring", source=(unit - 1) % n, slot_bytes=16, memory="local", members=["W"])
    b.place = Place("kernel.py", 7)
    b.receive(c, (4,), "f32", into=x, member="W")
    b.place = Place("kernel.py", 8)
    b.send(c, x, to=(unit + 1) % n, member="W")
    return b.finish()


def flood(slots: int, count: int) -> Plan:
    """Everybody sends ``count`` messages before receiving any."""
    b = PlanBuilder("flood", scale="core", units=2)
    x = b.tile("x", (4,), "f32", memory="local", role="inout")
    c = b.channel("c", source=(unit + 1) % 2, slot_bytes=16, memory="local", slots=slots)
    with b.loop(0, count):
        b.place = Place("flood.py", 3)
        b.send(c, x, to=(unit + 1) % 2)
    with b.loop(0, count):
        b.receive(c, (4,), "f32", into=x)
    return b.finish()


@pytest.mark.parametrize("engine", ["plain", "compiled", None])
def test_a_ring_of_receives(engine: str | None) -> None:
    with pytest.raises(Deadlock) as caught:
        simulate(both_receive_first(), machine=toy(3), engine=engine)
    text = str(caught.value)
    assert "plan 'stuck' is deadlocked" in text
    assert "core0: receive at kernel.py:7 lacks data on ring.W from core2" in text
    assert "wait cycle: core0 -> core2 -> core1 -> core0" in text
    graph = caught.value.graph
    assert len(graph.cycle()) == 3
    assert graph.dot().count('color="red"') == 3
    assert isinstance(caught.value, PlanDeadlock)


def test_too_few_slots_show_in_the_pointers() -> None:
    assert simulate(flood(2, 2), machine=toy(2)).time_ps > 0
    with pytest.raises(Deadlock) as caught:
        simulate(flood(2, 3), machine=toy(2))
    waiter = caught.value.graph.waiters[0]
    assert (waiter.lacks, waiter.command, waiter.source) == ("credit", "send", "flood.py:3")
    sender = next(
        p for p in caught.value.graph.pointers if p.unit == "core0" and p.direction.startswith("->")
    )
    assert (sender.my_head, sender.peer_tail_cache, sender.n_slots) == (2, 0, 2)
    receiver = next(
        p for p in caught.value.graph.pointers if p.unit == "core1" and not p.direction.startswith("->")
    )
    assert (receiver.peer_head_cache, receiver.my_tail) == (2, 0)


def test_a_barrier_that_not_all_reach() -> None:
    b = PlanBuilder("barrier", scale="core", units=3)
    group = b.group("all")
    with b.when(eq(unit, 1)) as branch:
        b.compute("fill", b.tile("x", (4,), "f32", memory="local"), [], value=0.0)
    with branch.otherwise():
        b.barrier(group)
    with pytest.raises(
        Deadlock, match=r"core0: barrier all at .*test_deadlock\.py:\d+ lacks barrier on all from core1"
    ):
        simulate(b.finish(), machine=toy(3))


def test_a_wait_without_a_signal() -> None:
    b = PlanBuilder("flag", scale="core", units=2)
    b.wait(b.flag("ready"), 1)
    with pytest.raises(Deadlock, match=r"wait at .*test_deadlock\.py:\d+ lacks signal on ready"):
        simulate(b.finish(), machine=toy(2))


def test_who_would_signal_in_another_round_or_branch() -> None:
    b = PlanBuilder("rounds", scale="core", units=4)
    flag = b.flag("turn")
    with b.when(unit < 2) as branch, b.loop(0, 3):
        b.signal(flag, to=1 - unit)
        b.wait(flag, 5)
    with branch.otherwise():
        b.signal(flag, to=5 - unit)
        b.wait(flag, 2)  # what the other sent is not enough, and nothing follows
    with pytest.raises(Deadlock) as error:
        simulate(b.finish(), machine=toy(4))
    peers = {w.unit: w.waits_on for w in error.value.graph.waiters}
    assert peers == {"core0": "core1", "core1": "core0", "core2": "nobody", "core3": "nobody"}


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
    assert "test_deadlock.py:" in text
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
    assert {w.source.rpartition("/")[2] for w in graph.cycle()} == {f"test_deadlock.py:{line}"}
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
