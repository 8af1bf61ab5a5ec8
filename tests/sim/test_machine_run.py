"""Launches that come after others, and launches whose times are known as long as nothing meets them."""

from __future__ import annotations

import random

import pytest
from tests.sim.test_concurrent import WORK, pingpong, work
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import SessionError
from megatile.sim.launches import Launch
from megatile.sim.machine_run import MachineRun, time_alone
from megatile.sim.session import Session
from megatile.sim.simulation import Simulation


def test_a_launch_begins_when_those_before_it_have_ended() -> None:
    hda = toy(4)
    machine = MachineRun(hda)
    first = machine.start(Launch(work(0, times=3), hda))
    second = machine.start(Launch(work(2), hda, after=(first,), submit_ps=10))
    third = machine.start(Launch(work(2), hda, after=(second,), submit_ps=1000))
    assert (second.state, second.end_ps) == ("submitted", None)
    machine.wait(third)
    assert [w.submit_ps for w in (first, second, third)] == [0, 3 * WORK, 1000]
    assert [w.end_ps for w in (first, second, third)] == [3 * WORK, 4 * WORK, 1000 + WORK]


def test_what_comes_after_a_cancelled_launch_begins() -> None:
    hda = toy(4)
    machine = MachineRun(hda)
    first = machine.start(Launch(work(0, times=3), hda, submit_ps=500))
    second = machine.start(Launch(work(0), hda, after=(first,)))
    third = machine.start(Launch(work(0), hda, after=(second,)))
    machine.cancel(second)
    machine.wait(third)
    assert (second.state, third.end_ps) == ("cancelled", WORK)


def shared(first: int, times: int) -> Plan:
    """Copies of one core from the memory that it shares with all others."""
    b = PlanBuilder(f"copies{first}", scale="core", units=1, placement=unit + first)
    x = b.tile(f"x{first}", (64,), "f32", memory="common", role="input")
    y = b.tile(f"y{first}", (64,), "f32", memory="local", role="output")
    with b.loop(0, times):
        b.copy(y, x)
    return b.finish()


@pytest.mark.parametrize("seed", range(12))
def test_launches_of_known_times_end_as_if_the_engine_had_them(seed: int) -> None:
    """Some meet (they say that they use the same part), some begin long before that is known."""
    hda = toy(4)
    plans = [work(k, 1, times) for k, times in enumerate((2, 5, 9, 3))]
    plans += [shared(k, times) for k, times in enumerate((3, 7, 2, 4))]
    known = {id(plan): time_alone(Launch(plan, hda), 0) for plan in plans}

    def ends(quick: bool) -> list[tuple[int, int | None]]:
        machine, found, at, choose = MachineRun(hda), list[Launch](), 0, random.Random(seed)
        for _ in range(12):
            plan = choose.choice(plans)
            core = int(plan.place.evaluate({"unit": 0}))
            parts = frozenset({core, "memory"} if plan.name.startswith("copies") else {core})
            before = [w for w in found if w.plan.place == plan.place][-1:]
            launch = Launch(plan, hda, submit_ps=at, after=tuple(before))
            if quick:
                launch.uses, launch.known = parts, known[id(plan)]
            found.append(machine.start(launch))
            if choose.random() < 0.5:
                launch = choose.choice(found)
                while not launch.over:
                    machine.step()
                at = max(at, machine.now_ps)
            at += choose.choice([0, 1, 50, 400])
        while not all(w.over for w in found):
            machine.step()
        return [(w.submit_ps, w.end_ps) for w in found]

    assert ends(True) == ends(False)


def test_a_wait_is_not_a_deadlock_while_another_worker_may_submit() -> None:
    plan = pingpong()
    s = Session(toy(2, control=True))
    s.install(plan)
    a, b = s.worker("a"), s.worker("b")
    halves = [plan.part([0]), plan.part([1])]
    first = a.submit(halves[0])
    with pytest.raises(SessionError, match=r"launch 0 \('pingpong'\) cannot go on unless Worker\(b"):
        a.wait(first)
    assert first.state == "running"
    second = b.submit(halves[1])
    assert len(s.wait(first, second)) == 2


def test_an_interrupted_run_counts_its_instructions_once() -> None:
    """The engine stops in the middle of a slice where the time is over and it asks something."""

    def counted(deadline: float | None) -> int:
        machine, before = MachineRun(toy(4), engine="plain"), Simulation._steps
        launch = machine.start(Launch(shared(0, 20), toy(4)))
        while launch.state != "done":
            machine.step(deadline=deadline)
        return Simulation._steps - before

    assert counted(0.0) == counted(None) > 20
