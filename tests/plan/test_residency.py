"""``plan/residency.py``: which instances of a plan's levels are there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings, strategies as st
from tests.plan.shared import ahbm, blocks_and_parts

from megatile.core.expr import Const, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Level, Plan, Stream
from megatile.plan.residency import Residency, copies


@settings(max_examples=60, deadline=None)
@given(blocks=st.integers(1, 40), slots=st.integers(1, 3), data=st.data())
def test_who_is_resident_when(blocks, slots, data):
    """By number to the first free slot, against a model that knows nothing of levels."""
    plan = Plan("p", "cube", (1,), levels=(Level("block", "pe", (blocks,), parent="cube", slots=slots),))
    plan = replace(plan, streams=(Stream(((0, blocks, 1),), (), "block"),))
    residency = Residency(plan, ahbm())
    below = ahbm().count("pe") // ahbm().count("cube")
    (level,) = plan.levels
    running = [n for found, numbers in residency.begin() if found is level for n in numbers.tolist()]
    free = sorted((s, u) for u in range(below) for s in range(slots))
    expected, waiting = {}, list(range(blocks))
    while waiting and free:
        expected[waiting.pop(0)] = free.pop(0)
    while running:
        assert sorted(running) == sorted(expected)
        assert {n: residency.hardware["block", n] for n in running} == {
            n: u for n, (_, u) in expected.items()
        }
        one = data.draw(st.sampled_from(sorted(running)))
        running.remove(one)
        running += [
            n for _, numbers in residency.finished(level, np.asarray([one])) for n in numbers.tolist()
        ]
        free = sorted([*free, expected.pop(one)])
        if waiting:
            expected[waiting.pop(0)] = free.pop(0)
    assert not waiting
    assert not residency.absent()


def test_slots_are_taken_in_number_order_and_freed_when_all_below_has_ended():
    plan = blocks_and_parts(slots=1)
    hda = ahbm()
    plan = replace(
        plan,
        scale="cube",
        levels=(
            replace(plan.levels[0], scale="pe", parent="cube", grid=(20,)),
            replace(plan.levels[1], scale="pe"),
        ),
    )
    per = hda.count("pe") // hda.count("cube")
    residency = Residency(plan, hda)
    began = [(level.name, numbers.tolist()) for level, numbers in residency.begin()]
    assert ("block", list(range(per))) in began
    assert residency.absent() == {"block": 20 - per}
    block, part = plan.levels
    assert not list(residency.finished(block, np.asarray([1])))
    assert not list(residency.finished(part, np.asarray([2])))
    after = [(level.name, numbers.tolist()) for level, numbers in residency.finished(part, np.asarray([3]))]
    assert ("block", [per]) in after
    assert residency.hardware["block", per] == 1


def test_the_places_of_instances():
    hda = ahbm()
    per_cube, per_sip = hda.count("pe") // hda.count("cube"), hda.count("cube") // hda.count("sip")
    b = PlanBuilder("places", scale="sip", units=2)
    b.level("cube", scale="cube", grid=2, parent="sip", placement=unit + 1)
    b.level("pe", scale="pe", grid=1, parent="cube", placement=Const(3))
    b.level("block", scale="pe", grid=1000, parent="cube", slots=2)
    found = copies(b.finish(), hda)
    cubes = [1, 2, per_sip + 1, per_sip + 2]
    assert found["cube"][0].tolist() == cubes
    assert found["pe"][0].tolist() == [c * per_cube + 3 for c in cubes]
    assert found["block"][0].tolist() == [c * per_cube + u for c in cubes for u in range(per_cube)]
    assert set(found["block"][1].tolist()) == {2}
