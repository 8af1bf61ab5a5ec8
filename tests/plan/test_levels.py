"""Levels: blocks of a launch, the parts in them, slots; checked, executed, written and read."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import megatile as mt
from megatile.core.expr import Const, eq, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.deadlock import PlanDeadlock
from megatile.plan.execute import execute
from megatile.plan.model import Level, Plan, PlanError, Stream
from megatile.plan.races import RaceError
from megatile.plan.residency import Residency, copies

BLOCKS, PARTS = 6, 2


def blocks_and_parts(
    slots: int | None = 2, units: int = 1, grid: tuple[int, ...] = (3, 2), parts: int = PARTS
) -> Plan:
    """Blocks load a row of their unit's input, their parts double some columns each, the blocks store it, and
    the unit doubles everything once more."""
    blocks, columns = prod(grid), 2 * parts
    b = PlanBuilder("blocks", scale="device", units=units)
    block = b.level("block", scale="sm", grid=grid, parent="device", slots=slots)
    part = b.level("part", scale="warp", grid=parts, parent=block)
    x = b.tile("x", (blocks, columns), "f32", memory="hbm", role="inout")
    row = b.tile("row", (1, columns), "f32", memory="smem", level=block)
    loaded, done = b.flag("loaded", level=block), b.flag("done", level=block)
    over = b.flag("over")
    with b.stream(level=block):
        mine = x[unit % blocks, 0:columns]
        b.copy(row, mine)
        b.signal(loaded, to=unit)
        b.wait(done, parts)
        b.copy(mine, row)
        b.signal(over, to=unit // blocks)
    with b.stream(level=part):
        own = row[0, unit % parts * 2 : unit % parts * 2 + 2]
        b.wait(loaded, 1)
        b.compute("add", own, [own, own])
        b.signal(done, to=unit // parts)
    b.wait(over, blocks)
    b.compute("add", x, [x, x])
    return b.finish()


def test_numbers_of_instances():
    plan = blocks_and_parts()
    assert [plan.instances(level) for level in (None, "block", "part")] == [1, 6, 12]
    assert [plan.per("part", above) for above in ("part", "block", "device", None)] == [1, 2, 12, 12]
    assert plan.per("block", "part") is None
    assert plan.level().name == "device"


def test_children_use_what_belongs_to_their_parents():
    data = np.arange(BLOCKS * 4, dtype="f4").reshape(1, BLOCKS, 4)
    assert np.array_equal(execute(blocks_and_parts(), {"x": data})["x"], data * 4)


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


@pytest.mark.parametrize("slots", [None, 2])
def test_text_and_json_read_back(slots):
    plan = blocks_and_parts(slots)
    assert Plan.from_text(str(plan)) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert 'block = level(scale="sm", grid=(3, 2), parent="device"' in str(plan)


def test_without_the_flag_a_child_races_with_its_parent():
    b = PlanBuilder("race", scale="device", units=1)
    part = b.level("part", scale="sm", grid=2, parent="device")
    x = b.tile("x", (8,), "f32", memory="hbm", role="inout")
    y = b.tile("y", (8,), "f32", memory="smem", level=part)
    b.compute("add", x, [x, x])
    with b.stream(level=part):
        b.copy(y, x)
    with pytest.raises(RaceError, match=r"(part \d|unit 0) .*(part \d|unit 0)"):
        execute(b.finish(), {"x": np.zeros((1, 8), "f4")})


def ahbm() -> mt.HDA:
    return mt.machine("ahbm")


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


def test_capacity_counts_slots():
    b = PlanBuilder("full", scale="cube", units=1)
    block = b.level("block", scale="pe", grid=1000, parent="cube", slots=3)
    hda = ahbm()
    room = hda.memory("tcm").available
    b.tile("t", (room // 2,), "i8", memory="tcm", level=block)
    with b.stream(level=block):
        pass
    with pytest.raises(PlanError, match=r"memory 'tcm'.*3 units of \d+ bytes each"):
        check(b.finish(), hda)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.level("device", scale="sm", grid=2), "two levels have the name"),
        (lambda b: b.level("c", scale="sm", grid=2, parent="nobody"), "parent 'nobody'"),
        (lambda b: b.level("c", scale="sm", grid=0), "at least 1"),
        (lambda b: b.level("c", scale="sm", grid=2, slots=0), "at least 1"),
        (lambda b: b.tile("t", (4,), "f32", memory="hbm", level="cc"), "there is no level 'cc'"),
        (lambda b: b.tile("t", (4,), "f32", memory="hbm", level="device"), "names the first level"),
        (
            lambda b: b.tile("t", (4,), "f32", memory="hbm", role="input",
                             level=b.level("c", scale="sm", grid=2, slots=1)),
            "lies in the slot",
        ),
    ],
)  # fmt: skip
def test_wrong_levels(change, message):
    b = PlanBuilder("wrong", scale="device", units=1)
    change(b)
    with pytest.raises(PlanError, match=message):
        check(b.finish())


def test_a_parent_cannot_name_what_belongs_to_its_children():
    b = PlanBuilder("wrong", scale="device", units=1)
    block = b.level("block", scale="sm", grid=2, parent="device")
    t = b.tile("t", (4,), "f32", memory="smem", level=block)
    b.compute("add", t, [t, t])
    with b.stream(level=block):
        pass
    with pytest.raises(PlanError, match="tile 't' is of level 'block', this stream of level 'device'"):
        check(b.finish())


def test_a_parent_may_say_which_child_it_means():
    b = PlanBuilder("deliver", scale="device", units=1)
    block = b.level("block", scale="sm", grid=3, parent="device")
    x = b.tile("x", (3, 4), "f32", memory="hbm", role="input")
    t = b.tile("t", (1, 4), "f32", memory="smem", level=block, role="output")
    ready = b.flag("ready", level=block)
    with b.loop(0, 3) as k:
        b.copy(t.at(k.index), x[k.index : k.index + 1, 0:4])
        b.signal(ready, to=k.index)
    with b.stream(level=block):
        b.wait(ready, 1)
        b.compute("add", t, [t, t])
    data = np.arange(12, dtype="f4").reshape(1, 3, 4)
    plan = b.finish()
    check(plan)
    assert np.array_equal(execute(plan, {"x": data})["t"], 2 * data.reshape(3, 1, 4))


def test_messages_between_instances():
    b = PlanBuilder("ring", scale="device", units=1)
    block = b.level("block", scale="sm", grid=4, parent="device")
    t = b.tile("t", (4,), "f32", memory="smem", level=block, role="inout")
    ring = b.channel("ring", source=(unit - 1) % 4, slot_bytes=16, memory="smem", level=block)
    with b.stream(level=block):
        b.send(ring, t, to=(unit + 1) % 4)
        b.receive(ring, (4,), "f32", into=t)
    plan = b.finish()
    assert check(plan).messages == 4
    data = np.arange(16, dtype="f4").reshape(4, 4)
    assert np.array_equal(execute(plan, {"t": data})["t"], np.roll(data, 1, axis=0))
    assert Plan.from_text(str(plan)) == plan


def test_an_installed_channel_is_open():
    b = PlanBuilder("open", scale="pe", units=2)
    x = b.tile("x", (4,), "f32", memory="tcm", role="inout")
    sip = b.channel("sip", source=1 - unit, slot_bytes=16, memory="tcm", installed=True, slots=1)
    b.send(sip, x, to=1 - unit)
    b.send(sip, x, to=1 - unit)
    plan = b.finish()
    check(plan)
    assert Plan.from_text(str(plan)) == plan
    with b.loop(0, 5):
        b.receive(sip, (4,), "f32")
    check(b.finish())


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


def test_the_format_of_before_is_read():
    text = '{"format": 1, "is": "Plan", "name": "old", "scale": "pe", "grid": [1]}'
    assert Plan.from_json(text) == Plan("old", "pe", (1,))
    assert Level("a", "pe", (2, 3)).count == 6
