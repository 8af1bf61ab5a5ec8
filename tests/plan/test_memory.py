"""``plan/memory.py``: whether what a plan places in memories fits, and whether ranges that have fixed
places keep apart."""

from __future__ import annotations

import pytest
from tests.plan.shared import ahbm, builder, fails, tile

import megatile as mt
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.memory import blocks
from megatile.plan.model import PlanError


def test_receive_ranges_that_overlap():
    b = builder()
    b.channel("a", source=(unit - 1) % 4, slot_bytes=64, memory="tcm", members=2, offset=0)
    b.channel("b", source=(unit - 1) % 4, slot_bytes=64, memory="tcm", offset=200)
    fails(b, r"receive range a\[1\] and receive range b\[0\] overlap in memory 'tcm' at byte 200")
    b = builder()
    tile(b, offset=0)
    b.channel("b", source=(unit - 1) % 4, slot_bytes=64, memory="tcm", offset=16)
    fails(b, r"tile 'x' and receive range b\[0\] overlap in memory 'tcm' at byte 16")


def test_memory_that_is_too_small():
    hda = mt.machine("ahbm")
    b = builder()
    b.tile("big", (4 * 2**20,), "f32", memory="tcm", versions=2)
    fails(
        b, r"memory 'tcm' of machine 'ahbm' has 12582912 bytes, the plan needs 33554432.*tile 'big'", hda=hda
    )
    b = builder()
    b.channel("c", source=(unit - 1) % 4, slot_bytes=2**22, slots=2, members=2, memory="tcm")
    fails(b, "the largest is receive range", hda=hda)


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
    ("block", "versions", "needed"),
    [((64, 64), 1, 4 * 16384), ((32, 64), 2, 2 * 7 * 8192), ((400, 64), 1, 102400)],
)
def test_a_unit_has_as_many_blocks_of_a_spread_tile_as_it_may_get(block, versions, needed):
    """Of 400 × 64 floats over 2 units: 7 blocks of 64 rows, 13 of 32, or all in one."""
    b = PlanBuilder("spread", scale="device", units=1)
    over = b.level("block", scale="sm", grid=2, parent="device")
    b.tile("t", (400, 64), "f32", memory="hbm", over=over, block=block, versions=versions)
    assert [size for _, _, size, _ in blocks(b.finish(), "block")] == [needed]
