"""Loops in which units only work are priced without walking them, to the picosecond."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.toys import toy

from megatile.core.expr import eq, unit
from megatile.cost import timed_walk as module
from megatile.cost.price import price
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.model import Plan
from megatile.sim import simulate

HDA = toy(3)
OPERATIONS = ("load", "walk", "back", "turn", "add", "exp", "store", "some", "inner")


def plan_of(steps: list[tuple[str, int]], trips: int, versions: tuple[int, int], before: bool) -> Plan:
    """A loop over a list of steps on a few tiles; ``walk`` goes through a long one, ``turn`` in circles."""
    b = PlanBuilder("work", scale="core", units=3)
    far = b.tile("far", (64,), "f32", memory="common", role="inout")
    long = b.tile("long", (trips + 1, 64), "f32", memory="common", role="inout")
    circle = b.tile("circle", (4, 64), "f32", memory="local", role="inout")
    tiles = [
        b.tile("p", (64,), "f32", memory="local", versions=versions[0], role="inout"),
        b.tile("q", (64,), "f32", memory="local", versions=versions[1], role="inout"),
    ]
    if before:
        b.compute("exp", tiles[0], [tiles[0]])
        b.copy(far, tiles[1])
    with b.loop(0, trips) as loop:
        for kind, which in steps:
            tile, other = tiles[which], tiles[1 - which]
            if kind == "load":
                b.copy(tile, far, fresh=True)
            elif kind == "walk":
                b.copy(tile, long[loop.index], fresh=True)
            elif kind == "back":
                b.copy(long[trips - loop.index], tile)
            elif kind == "turn":
                b.compute("add", circle[(loop.index + unit) % 4], [tile, other])
            elif kind == "add":
                b.compute("add", tile, [tile, other])
            elif kind == "exp":
                b.compute("exp", tile, [other])
            elif kind == "store":
                b.copy(far, tile)
            elif kind == "some":
                with b.when(eq(unit, which)):
                    b.compute("add", tile, [tile, tile])
            elif kind == "inner":
                with b.loop(0, 20):
                    b.compute("add", tile, [tile, other])
    b.compute("add", tiles[0], [tiles[0], tiles[1]])
    b.copy(tiles[1], long[trips // 2])
    b.copy(tiles[0], circle[1])
    return b.finish()


STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 1)), min_size=1, max_size=4)


@settings(max_examples=60)
@given(steps=STEPS, versions=st.tuples(st.integers(1, 3), st.integers(1, 2)), before=st.booleans())
def test_skipping_gives_what_walking_gives(steps, versions, before):
    plan = plan_of(steps, 60, versions, before)
    found, skip = price(plan, HDA), module.skip_local
    module.skip_local = lambda *_: 0
    try:
        assert price(plan, HDA) == found
    finally:
        module.skip_local = skip
    time = simulate(plan, machine=HDA).time_ps
    assert found.lower_ps <= time <= found.upper_ps


@pytest.mark.parametrize("trips", [10**5, 10**9])
def test_a_loop_of_any_length(monkeypatch, trips):
    b = PlanBuilder("work", scale="core", units=3)
    far = b.tile("far", (64,), "f32", memory="local", role="inout")
    near = b.tile("near", (64,), "f32", memory="local", versions=2)
    with b.stream([0, 1]), b.loop(0, trips):
        b.copy(near, far, fresh=True)
        b.compute("exp", near, [near])
    with b.stream([2]):
        b.copy(near, far)
    plan = b.finish()
    check(plan)
    seen = []
    walk = module.TimedWalk.on_compute
    monkeypatch.setattr(module.TimedWalk, "on_compute", lambda *a: (seen.append(1), walk(*a))[1])
    bounds = price(plan, HDA)
    # A copy of 20 + 64 and 10 later, then 517 per exp; the copies run ahead.
    assert bounds.exact
    assert bounds.lower_ps == 94 + trips * 517
    assert len(seen) < 60
