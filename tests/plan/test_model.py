"""``plan/model.py``: the Plan as data."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
from hypothesis import given, settings, strategies as st
from tests.plan.shared import ahbm, blocks_and_parts
from tests.plan.text_cases import GOLDEN, ring

from megatile.core.errors import Place
from megatile.core.expr import Const
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan


def test_numbers_of_instances():
    plan = blocks_and_parts()
    assert [plan.instances(level) for level in (None, "block", "part")] == [1, 6, 12]
    assert [plan.per("part", above) for above in ("part", "block", "device", None)] == [1, 2, 12, 12]
    assert plan.per("block", "part") is None
    assert plan.level().name == "device"


@settings(max_examples=40, deadline=None)
@given(
    units=st.integers(1, 3),
    grid=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    parts=st.integers(1, 4),
    slots=st.none() | st.integers(1, 3),
)
def test_any_number_of_instances(units, grid, parts, slots):
    plan = blocks_and_parts(slots, units, tuple(grid), parts)
    data = np.random.default_rng(0).random((units, prod(grid), 2 * parts)).astype("f4")
    assert np.array_equal(execute(plan, {"x": data})["x"], data * 4)
    assert Plan.from_text(str(plan)) == plan
    # On a machine only some blocks are there at a time; each ends without the others.
    scales = {"device": "cube", "sm": "pe", "warp": "pe"}
    levels = tuple(
        replace(
            level, scale=scales[level.scale], parent=scales.get(level.parent, level.parent), place=Const(0)
        )
        for level in plan.levels
    )
    memories = {"hbm": "hbm", "smem": "tcm"}
    tiles = tuple(replace(tile, memory=memories[tile.memory]) for tile in plan.tiles)
    if slots is not None:
        check(replace(plan, scale="cube", levels=levels, tiles=tiles), ahbm())


def test_places_are_not_part_of_a_plans_identity():
    plan = ring()
    elsewhere = Plan.from_text(GOLDEN.replace("ring.py:7", "other.py:70"))
    assert elsewhere == plan
    assert elsewhere.digest == plan.digest
    assert Plan.from_json(plan.to_json()).streams[0].body[0].source == Place("ring.py", 6)
    before = re.sub(r'"source": (\{\s*"is": "Place")', r'"place": \1', plan.to_json())
    before = before.replace('"format": 2', '"format": 1')
    assert ('"place": {' in before, '"source": {' in before) == (True, True)  # the latter of the channel
    assert Plan.from_json(before).streams[0].body[0].source == Place("ring.py", 6)


def test_the_hash_is_stable_and_sees_changes():
    plan = ring()
    assert plan.digest == "54c25d3ba8ff50915464e1ff05adf05b079edb7aee66d8edcb45706f7eefba67"
    assert Plan.from_text(GOLDEN.replace("slots=2", "slots=3")).digest != plan.digest
