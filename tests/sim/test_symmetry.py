"""One unit that stands for all takes the time that all take; where units differ, none does."""

from __future__ import annotations

import random

import pytest
from tests.sim.toys import ring, toy

import megatile as mt
from megatile.core.expr import eq, table, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import Deadlock, simulate, symmetry
from megatile.sim.launches import Launch
from megatile.sim.machine_run import time_alone
from megatile.sim.symmetry import find_symmetry
from megatile.timing.faults import faults
from megatile.timing.resources import Resources


def one_for_all(plan: Plan, hda) -> int | None:
    """The time of a plan by the unit that stands for all, also where it is so short that none is sought."""
    if find_symmetry(plan, Resources(hda, plan)).one is None:
        return None
    launch = Launch(plan, hda)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(symmetry, "LARGE", 0)
        time_alone(launch, 0)
    assert launch.simulation is None
    assert launch.messages == simulate(plan, machine=hda).messages
    return launch.end_ps


def exchange(seed: int) -> Plan:
    """Messages to several neighbours, blocks that turn with the unit, loops, carried messages."""
    rng = random.Random(seed)
    n, size = rng.randrange(2, 9), rng.choice((1, 4, 16))
    b = PlanBuilder(f"exchange{seed}", scale="core", units=n)
    x = b.tile("x", (n * size,), "f32", memory="local", role="inout")
    y = b.tile("y", (size,), "f32", memory="local", versions=rng.randrange(1, 3))
    east = b.channel(
        "east", source=(unit - 1) % n, slot_bytes=4 * size, memory="local", slots=rng.randrange(1, 4)
    )
    west = b.channel(
        "west", source=(unit + 1) % n, slot_bytes=4 * size, memory="local", slots=rng.randrange(1, 4)
    )
    b.compute("fill", y, [], value=1.0)
    with b.loop(0, rng.randrange(1, 6)) as loop:
        at = ((unit + rng.randrange(n) - loop.index) % n) * size
        b.send(east, x[at : at + size], to=(unit + 1) % n)
        if rng.random() < 0.5:
            b.send(west, y, to=(unit - 1) % n)
            b.compute("add", y, [y, b.receive(west, (size,), "f32")])
        there = ((unit + rng.randrange(n) + loop.index) % n) * size
        if rng.random() < 0.5:
            b.receive(east, (size,), "f32", into=x[there : there + size])
        else:
            mine = x[there : there + size]
            b.compute("add", mine, [mine, b.receive(east, (size,), "f32")])
    return b.finish()


@pytest.mark.parametrize(("n", "chunk", "slots"), [(2, 4, 1), (3, 4, 1), (8, 64, 2), (16, 1, 1), (31, 7, 3)])
def test_a_ring_takes_the_time_of_one_unit(n: int, chunk: int, slots: int) -> None:
    plan, hda = ring(n, chunk, slots), toy(n, control=n % 2 == 0)
    assert one_for_all(plan, hda) == simulate(plan, machine=hda).time_ps


@pytest.mark.parametrize("seed", range(40))
def test_random_exchanges_of_equal_units(seed: int) -> None:
    plan = exchange(seed)
    hda = toy(plan.units, network={"granule": "8 B"} if seed % 3 == 0 else {})
    try:
        expected = simulate(plan, machine=hda).time_ps
    except Deadlock:
        with pytest.raises(Deadlock):
            one_for_all(plan, hda)
        return
    found = one_for_all(plan, hda)
    assert found in (expected, None)
    assert (found is None) == (plan.units == 2)  # both neighbours are the same unit, over the same link


def test_most_random_exchanges_have_a_unit_for_all() -> None:
    plans = [exchange(seed) for seed in range(40)]
    found = [find_symmetry(p, Resources(toy(p.units), p)).one is not None for p in plans if p.units > 2]
    assert all(found)


def test_units_that_differ_have_none_and_the_reason_is_reported() -> None:
    hda = toy(4)
    plan = ring(4, 4)
    one = "unit 0 for all, because all 4 do the same at the same times, on links of their own"
    assert str(find_symmetry(plan, Resources(hda, plan))) == one
    with faults(straggler={1: 2.0}) as slow:
        found = find_symmetry(plan, Resources(hda, plan, slow))
    assert (found.one, str(found)) == (None, "every unit, because faults tell them apart")
    found = find_symmetry(plan, Resources(toy(4, "line"), plan))
    assert found.because == "they share links, memories or engines, or differ in their paths"
    assert find_symmetry(plan, Resources(toy(4, "switch"), plan)).one is not None
    shared = ring(4, 4, memory="common")
    assert find_symmetry(shared, Resources(hda, shared)).one is None
    single = ring(1, 4)
    assert find_symmetry(single, Resources(toy(1), single)).because == "there is one"
    for size in (table((4, 8, 4, 4), unit) // 4, eq(unit, 1) + 1):
        b = PlanBuilder("uneven", scale="core", units=4)
        x = b.tile("x", (4,), "f32", memory="local", role="inout")
        c = b.channel("c", source=(unit - 1) % 4, slot_bytes=16, memory="local")
        with b.loop(0, size):
            b.send(c, x, to=(unit + 1) % 4)
            b.receive(c, (4,), "f32", into=x)
        uneven = b.finish()
        found = find_symmetry(uneven, Resources(hda, uneven))
        assert (found.one, found.because) == (None, "they differ in what they do")


def test_a_large_ring_takes_that_path_by_itself() -> None:
    plan, hda = ring(512, 8), toy(512)
    result = simulate(plan, machine=hda, record=False)
    assert result.launch.simulation is None
    assert result.timed_by.startswith("unit 0 for all, because all 512 do the same")
    assert result.time_ps == simulate(plan, machine=hda).time_ps
    assert sum(result.messages["ring"].values()) == 512 * 2 * 511
    small = mt.simulate(ring(8, 8), machine=toy(8), record=False)
    assert small.launch.simulation is not None
    assert small.timed_by == "every unit, because their commands are recorded, or few"
