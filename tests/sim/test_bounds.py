"""lower <= simulated <= upper for random plans; equal where nothing contends."""

from __future__ import annotations

from statistics import median

import pytest
from tests.sim.random_cases import random_case
from tests.sim.random_levels import random_levels
from tests.sim.random_plans import random_plan
from tests.sim.toys import ring, toy

from megatile.core.errors import MegatileError
from megatile.core.expr import member, unit
from megatile.cost.price import price
from megatile.cost.static_bound import floor
from megatile.hda import machine
from megatile.language import tl
from megatile.plan.build import PlanBuilder
from megatile.plan.deadlock import PlanDeadlock
from megatile.sim import simulate


def test_the_price_bounds_the_simulated_time() -> None:
    ratios = []
    for seed in range(60):
        plan = random_plan(seed)
        hda = toy(
            plan.units,
            ["ring", "switch", "line"][seed % 3],
            control=seed % 4 == 0,
            network={"duplex": ["full", "half"][seed % 2]},
        )
        bounds, time = price(plan, hda), simulate(plan, machine=hda).time_ps
        assert bounds.lower_ps <= time <= bounds.upper_ps, seed
        ratios.append(bounds.upper_ps / bounds.lower_ps)
    assert median(ratios) <= 2


def test_the_price_is_exact_where_nothing_contends() -> None:
    for n in (3, 8):
        bounds = price(ring(n, 64), toy(n))
        assert bounds.lower_ps == bounds.upper_ps == simulate(ring(n, 64), machine=toy(n)).time_ps


@pytest.mark.parametrize("units", [2, 4, 6, 8])
def test_the_price_bounds_receives_from_any(units: int) -> None:
    """The message that comes first is not the one whose turn it would be."""

    def both_ways(t_ptr, n, tl):
        mine = t_ptr + tl.program_id(0) * n * 2
        total = tl.load(mine, (n,), "f16")
        tl.send("E", total)
        tl.send("W", total)
        for _ in range(2):
            total = total + tl.recv(shape=(n,), dtype="f16")
        tl.store(mine, total)

    plan = tl.read_kernel(both_ways, [tl.Tensor("t", (8,)), 8], world_size=units)
    ahbm = machine("ahbm")
    bounds = price(plan, ahbm)
    assert bounds.lower_ps <= simulate(plan, machine=ahbm).time_ps <= bounds.upper_ps


@pytest.mark.parametrize("topology", ["ring", "switch", "line"])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("late", [0, 3])
def test_the_price_bounds_receives_from_any_with_few_slots(topology: str, slots: int, late: int) -> None:
    n, size = 5, 64
    b = PlanBuilder("any", scale="core", units=n)
    x, z = (b.tile(name, (size,), "f32", memory="local", role="inout") for name in "xz")
    queues = b.channel(
        "c", source=(unit + 1 - 2 * member) % n, members=2, slots=slots, slot_bytes=4 * size, memory="local"
    )
    with b.loop(0, 2 if slots > 1 else 1):
        with b.loop(0, unit % 2 * late):
            b.compute("exp", z, [z])
        b.send(queues, z, to=(unit + 1) % n, member=1)
        b.compute("exp", z, [z])
        b.send(queues, z, to=(unit - 1) % n, member=0)
        for _ in range(2):
            message, _chosen = b.receive_any(queues, (size,), "f32")
            b.compute("add", x, [x, message])
    plan, hda = b.finish(), toy(n, topology)
    bounds = price(plan, hda)
    assert bounds.lower_ps <= simulate(plan, machine=hda).time_ps <= bounds.upper_ps


def test_the_price_bounds_levels_and_slots() -> None:
    for seed in range(60):
        case = random_levels(seed)
        try:
            time = simulate(case.plan, machine=case.hda).time_ps
        except PlanDeadlock:
            with pytest.raises(PlanDeadlock):
                price(case.plan, case.hda)
            continue
        bounds = price(case.plan, case.hda)
        assert bounds.lower_ps <= time <= bounds.upper_ps, seed


def test_the_price_bounds_copies_of_one_instance_that_meet_in_a_memory() -> None:
    case = random_levels(801)
    assert price(case.plan, case.hda).upper_ps >= simulate(case.plan, machine=case.hda).time_ps


def test_the_price_bounds_copies_of_a_carried_tile_behind_a_cache() -> None:
    case = random_case(783)
    assert price(case.plan, case.hda).upper_ps >= simulate(case.plan, machine=case.hda).time_ps


def test_no_random_case_beats_its_floor() -> None:
    """Seeds 274, 441 and 559: units that share the memory at the other end reach it without links."""
    for seed in (*range(40), 274, 441, 559):
        case = random_case(seed)
        try:
            time = simulate(
                case.plan, machine=case.hda, inputs=case.inputs, assume=case.assume, record=False
            ).time_ps
        except MegatileError:
            continue
        assert floor(case.plan, case.hda) <= time, seed
        assert price(case.plan, case.hda).lower_ps <= time, seed
