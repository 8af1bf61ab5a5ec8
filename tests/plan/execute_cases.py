"""What files that test execute share."""

from __future__ import annotations

from megatile.core.errors import Place
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder


def builder(units=4):
    b = PlanBuilder("p", scale="device", units=units)
    b.place = Place("kernel.py", 3)
    return b


def put_without_order(synchronise):
    b = builder(2)
    x = b.tile("x", (2,), "f32", memory="l2", role="inout")
    inbox = b.tile("inbox", (2,), "f32", memory="l2")
    flag, everyone = b.flag("flag"), b.group("everyone")
    channel = b.channel("c", source=(unit - 1) % 2, slot_bytes=8, memory="l2")
    b.place = Place("kernel.py", 10)
    b.copy(inbox.at((unit + 1) % 2), x)
    if synchronise == "barrier":
        b.barrier(everyone)
    elif synchronise == "signal":
        b.signal(flag, to=(unit + 1) % 2)
        b.wait(flag, 1)
    elif synchronise == "message":
        b.send(channel, x, to=(unit + 1) % 2)
        b.receive(channel, (2,), "f32")
    b.place = Place("kernel.py", 20)
    b.copy(x, inbox)
    return b.finish()
