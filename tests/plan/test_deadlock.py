"""``plan/deadlock.py``: the report of a deadlock."""

from __future__ import annotations

import pytest
from tests.plan.shared import ahbm, builder, fails, ring, tile

from megatile.core.expr import eq, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.deadlock import PlanDeadlock
from megatile.plan.model import Plan


def test_a_receive_without_a_send():
    b = builder()
    b.receive(ring(b), (8,), "f32")
    fails(b, r"(?s)kernel.py:7.*unit 0 waits for a message on ring\[0\] from unit 3", PlanDeadlock)


def test_wait_for_cycle_through_slots():
    b = builder(2)
    c, x = ring(b, 2, slots=1), tile(b)
    for _ in range(2):
        b.send(c, x, to=(unit + 1) % 2)
    for _ in range(2):
        b.receive(c, (8,), "f32", into=x)
    message = r"(?s)unit 0 waits for a free slot of ring\[0\] of unit 1.*each waits for the next: 0 -> 1 -> 0"
    fails(b, message, PlanDeadlock)


def test_slots_that_are_never_free_again():
    b = builder(2)
    c, x, y = ring(b, 2, slots=2), tile(b), tile(b, "y")
    held = []
    for _ in range(3):
        b.send(c, x, to=(unit + 1) % 2)
        held.append(b.receive(c, (8,), "f32"))
    for message in held:
        b.compute("add", y, [x, message])
    fails(b, "waits for a free slot", PlanDeadlock)


def test_a_collective_that_not_all_reach():
    b = builder()
    everyone = b.group("everyone")
    with b.when(unit < 3):
        b.barrier(everyone)
    fails(
        b, r"(?s)kernel.py:7.*waits for its group of 'everyone' at the barrier; missing: \[3\]", PlanDeadlock
    )


def test_a_flag_that_is_never_raised():
    b = builder()
    flag = b.flag("done")
    b.signal(flag, to=unit)
    b.wait(flag, 2)
    fails(b, r"waits for flag 'done' to reach 2 \(it is 1\)", PlanDeadlock)


def chain(blocks: int, slots: int, to_later: bool) -> Plan:
    """Each block waits for the one after it (or before it)."""
    b = PlanBuilder("chain", scale="cube", units=1)
    block = b.level("block", scale="pe", grid=blocks, parent="cube", slots=slots)
    go = b.flag("go", level=block)
    first, step = (blocks - 1, -1) if to_later else (0, 1)
    with b.stream(level=block):
        with b.when(1 - eq(unit, first)):
            b.wait(go, 1)
        with b.when(1 - eq(unit, blocks - 1 - first)):
            b.signal(go, to=unit + step)
    return b.finish()


def test_waiting_for_an_instance_that_is_not_resident_is_a_deadlock():
    hda = ahbm()
    fit = hda.count("pe") // hda.count("cube")
    late = chain(2 * fit + 1, 2, to_later=True)
    check(late)  # no machine: all are there
    with pytest.raises(
        PlanDeadlock, match=r"block 0 waits for flag.*\n(.*\n)*.*1 instances of level 'block'"
    ):
        check(late, hda)
    check(chain(2 * fit, 2, to_later=True), hda)
    check(chain(5 * fit, 1, to_later=False), hda)


def test_the_graph_says_where_and_for_what_a_unit_waits():
    b = builder()
    b.receive(ring(b), (8,), "f32")
    with pytest.raises(PlanDeadlock) as caught:
        check(b.finish())
    first = caught.value.graph.waiters[0]
    assert (first.channel, first.source) == ("ring", "kernel.py:7")
    b = builder()
    with b.when(unit < 3):
        b.barrier(b.group("everyone"))
    with pytest.raises(PlanDeadlock) as caught:
        check(b.finish())
    assert caught.value.graph.waiters[0].channel == "collective"
