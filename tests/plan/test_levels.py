"""Levels: blocks of a launch, the parts in them, slots; checked, executed, written and read."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.shared import BLOCKS, blocks_and_parts

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan, PlanError


def test_children_use_what_belongs_to_their_parents():
    data = np.arange(BLOCKS * 4, dtype="f4").reshape(1, BLOCKS, 4)
    assert np.array_equal(execute(blocks_and_parts(), {"x": data})["x"], data * 4)


@pytest.mark.parametrize("slots", [None, 2])
def test_text_and_json_read_back(slots):
    plan = blocks_and_parts(slots)
    assert Plan.from_text(str(plan)) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert 'block = level(scale="sm", grid=(3, 2), parent="device"' in str(plan)


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
