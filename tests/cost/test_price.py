"""Bounds on time: they hold, they meet where nothing contends, and they are not far apart."""

from __future__ import annotations

import statistics
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from tests.cost.shared import AHBM
from tests.plan.generator import REGULAR, cases

import megatile as mt
from megatile.core.expr import eq, select, unit
from megatile.cost.price import Price, _alike, price
from megatile.plan.build import PlanBuilder
from megatile.sim.instructions import SEND
from megatile.sim.simulate import simulate
from megatile.sim.state import NONE, Recorded
from megatile.timing.machine_timing import TimingError


def simulated(plan, machine=AHBM):
    return round(simulate(plan, machine=machine).time_ns * 1000)


@settings(max_examples=60)
@given(case=cases(phases=REGULAR))
def test_the_simulated_time_lies_between_the_bounds(case):
    bounds = price(case.plan, AHBM)
    time = simulated(case.plan)
    assert bounds.lower_ps <= time <= bounds.upper_ps
    if bounds.exact:
        assert time == bounds.lower_ps


def ring(units, columns, slots=2, scale="pe", memory="tcm"):
    b = PlanBuilder("ring", scale=scale, units=units)
    x = b.tile("x", (units, columns), "f32", memory=memory, role="inout")
    c = b.channel("ring", source=(unit - 1) % units, slots=slots, slot_bytes=4 * columns, memory=memory)
    with b.loop(0, units - 1) as loop:
        b.send(c, x[(unit - loop.index) % units], to=(unit + 1) % units)
        message = b.receive(c, (1, columns), "f32")
        mine = x[(unit - loop.index - 1) % units]
        b.compute("add", mine, [mine, message])
    return b.finish()


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("columns", [1, 64, 1000])
def test_two_units_with_links_of_their_own_have_one_price(slots, columns):
    plan = ring(2, columns, slots)
    bounds = price(plan, AHBM)
    assert bounds.exact
    assert bounds.shared == ()
    assert bounds.lower_ps == simulated(plan)


def test_everybody_to_one_contends():
    n, columns = 8, 4096
    b = PlanBuilder("gather", scale="pe", units=n)
    x = b.tile("x", (columns,), "f32", memory="tcm", role="inout")
    from megatile.core.expr import member

    c = b.channel(
        "c", source=select(eq(unit, 0), member + 1, -1), members=n - 1, slot_bytes=4 * columns, memory="tcm"
    )
    with b.when(eq(unit, 0)) as branch, b.loop(0, n - 1) as loop:
        message = b.receive(c, (columns,), "f32", member=loop.index)
        b.compute("add", x, [x, message])
    with branch.otherwise():
        b.send(c, x, to=0, member=unit - 1)
    plan = b.finish()
    bounds, time = price(plan, AHBM), simulated(plan)
    assert bounds.shared
    assert bounds.lower_ps <= time <= bounds.upper_ps
    assert not bounds.exact


def test_bounds_are_close_on_random_plans():
    from tests.sim.random_plans import PATTERNS, random_plan
    from tests.sim.toys import toy

    machine, ratios = toy(6), []
    for seed in range(60):
        plan = random_plan(seed, patterns=tuple(p for p in PATTERNS if p != "any"))
        bounds, time = price(plan, machine), simulated(plan, machine)
        assert bounds.lower_ps <= time <= bounds.upper_ps, seed
        ratios.append(bounds.upper_ps / bounds.lower_ps)
    assert statistics.median(ratios) <= 2


def test_data_dependent_plans_are_priced_as_assumed():
    b = PlanBuilder("p", scale="pe", units=1)
    x = b.tile("x", (8,), "f32", memory="tcm", role="inout")
    times = b.read_scalar(x[0:1], bound=100)
    with b.loop(0, times):
        b.compute("neg", x, [x])
    plan = b.finish()
    few, many = price(plan, AHBM, assume={"scalar": 1}), price(plan, AHBM)
    assert many.lower_ps < few.lower_ps == few.upper_ps < many.upper_ps
    for value in (0, 1, 100):
        assert (
            many.lower_ps <= simulate(plan, machine=AHBM, assume={"scalar": value}).time_ps <= many.upper_ps
        )


def test_a_number_per_unit_can_be_assumed() -> None:
    b = PlanBuilder("uneven", scale="pe", units=3)
    s = b.tile("s", (1,), "i32", memory="tcm", role="input")
    x = b.tile("x", (64,), "f32", memory="tcm", role="inout")
    with b.loop(0, b.read_scalar(s[0:1], bound=9, name="times")):
        b.compute("add", x, [x, x])
    plan = b.finish()
    for times in ([1, 5, 2], np.array([0, 0, 9]), 3):
        found = price(plan, AHBM, assume={"times": times})
        assert (
            found.lower_ps == simulate(plan, machine=AHBM, assume={"times": times}).time_ps == found.upper_ps
        )
    for wrong, says in (
        ([1, 2], "none for unit 2"),
        ([1, 2, 10], "outside 0..9"),
        ("many", "takes a number"),
    ):
        with pytest.raises(TimingError, match=says):
            price(plan, AHBM, assume={"times": wrong})


def test_the_text_of_bounds_is_short_and_runs_nothing() -> None:
    wafer = mt.machine("cerebras-wse2", width=8, height=8)
    plan = mt.collective("all_reduce", machine=wafer, scale="block", nbytes=4096, algorithm="ring", ranks=4)
    assert len(repr(mt.price(plan, wafer))) < 80
    later = Price.bounded(2_000_000, lambda: pytest.fail("nobody asked for the upper bound"))
    assert repr(later) == "Price(at least 2 µs)"


@pytest.mark.parametrize("bits", [2, 16, 32, 60])
def test_equal_records_are_counted_together(bits):
    """Numbers up to so many bits, in all columns: more than one word tells apart."""
    rng = np.random.default_rng(bits)
    rows = rng.choice([0, 1, (1 << bits) - 1], (300, len(Recorded.fields)))
    rows[150:] = rows[:150]
    rows[:, Recorded.pc] = np.arange(300) % 2
    names = "kind", "pc", "actor", "engine", "path", "nbytes", "queue"
    wanted = Counter()
    for row in rows.tolist():
        start, end, arrived = (row[getattr(Recorded, name)] for name in ("start", "end", "arrived"))
        one = [row[getattr(Recorded, name)] for name in names]
        one[-1] = one[-1] if one[0] == SEND else NONE
        wanted[(*one, end - start, max(end, arrived) - start)] += 1 + row[Recorded.pc]
    found = _alike(rows, [Fraction(1), Fraction(2)])
    assert {one[:-1]: one.times for one in found} == wanted
    assert len(found) == len(wanted) < 300
