"""What files that test concurrent share."""

from __future__ import annotations

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan

WORK = 69
"""One add of 64 floats on a core of the toy machine."""


def work(first: int = 0, units: int = 2, times: int = 1, name: str = "work") -> Plan:
    """``times`` adds of 64 floats on cores from ``first`` on."""
    b = PlanBuilder(name, scale="core", units=units, placement=unit + first)
    x = b.tile(f"x{first}", (64,), "f32", memory="local", role="inout")
    with b.loop(0, times):
        b.compute("add", x, [x, x])
    return b.finish()


def pingpong(rounds: int = 3, slots: int = 2, scale: str = "core", memory: str = "local", **options) -> Plan:
    """Two units send each other what they have and add what they get."""
    b = PlanBuilder("pingpong", scale=scale, units=2, **options)
    x = b.tile("x", (16,), "f32", memory=memory, role="inout")
    c = b.channel("c", source=1 - unit, slot_bytes=64, memory=memory, slots=slots, installed=True)
    with b.loop(0, rounds):
        b.send(c, x, to=1 - unit)
        b.compute("add", x, [x, b.receive(c, (16,), "f32")])
    return b.finish()
