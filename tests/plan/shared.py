"""What several files of tests/plan share."""

from __future__ import annotations

from math import prod

import pytest

import megatile as mt
from megatile.core.errors import Place
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.model import Plan, PlanError


def builder(units=4, **options):
    b = PlanBuilder("p", scale="pe", units=units, **options)
    b.place = Place("kernel.py", 7)
    return b


def ring(b, units=4, **options):
    return b.channel("ring", source=(unit - 1) % units, slot_bytes=32, memory="tcm", **options)


def tile(b, name="x", shape=(8,), **options):
    return b.tile(name, shape, "f32", memory="tcm", **options)


def fails(b, message, error=PlanError, hda=None):
    with pytest.raises(error, match=message):
        check(b.finish() if isinstance(b, PlanBuilder) else b, hda)


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


def ahbm() -> mt.HDA:
    return mt.machine("ahbm")


HEAD = """plan("wrong", scale="pe", grid=(2,))
x = tile(f32, (8,), memory="tcm", role="inout")
q = channel(source=1 - unit, slots=2, slot_bytes=32, memory="tcm")
all = group(0)
with units((0, 2, 1)):
"""


EXCHANGE = """
    send(q, x, to=1 - unit, bytes=32)
    m <- receive(q, f32[8], bytes=32)
"""
