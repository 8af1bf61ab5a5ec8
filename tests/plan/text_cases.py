"""What files that test text share."""

from __future__ import annotations

from megatile.core.errors import Place
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder

GOLDEN = """\
plan("ring", scale="device", grid=(4,))
x = tile(f32, (4, 16), memory="l2", role="inout")
ring = channel(source=(unit - 1) % 4, slots=2, slot_bytes=64, memory="l2")
with units((0, 4, 1)):
    for k in range(0, 3, 1):  # ring.py:6
        send(ring, x[(unit - k) % 4:+1, 0:+16], to=(unit + 1) % 4, bytes=64)  # ring.py:7
        message <- receive(ring, f32[1, 16], bytes=64)  # ring.py:7
        x[k:+1, 0:+16] <- add(x[k:+1, 0:+16], message, flops=16, bytes=192)  # ring.py:7
        free(message)  # ring.py:7
"""


def ring():
    b = PlanBuilder("ring", scale="device", units=4)
    x = b.tile("x", (4, 16), "f32", memory="l2", role="inout")
    c = b.channel("ring", source=(unit - 1) % 4, slot_bytes=64, memory="l2")
    b.place = Place("ring.py", 6)
    with b.loop(0, 3) as loop:
        b.place = Place("ring.py", 7)
        b.send(c, x[(unit - loop.index) % 4], to=(unit + 1) % 4)
        message = b.receive(c, (1, 16), "f32")
        mine = x[loop.index]
        b.compute("add", mine, [mine, message])
    return b.finish()


WHOLE = """plan("p", scale="pe", grid=(4,))
x = tile(f32, (8,), memory="tcm", role="inout")
ring = channel(source=unit, slots=2, slot_bytes=32, memory="tcm")
g = group(0)
f = flag(members=2)
with units((0, 4, 1)):
    send(ring, x, to=unit, bytes=32)
    x <- receive(ring, f32[8], into=True, bytes=32)
    collective("barrier", g)
    signal(f, to=unit)
    wait(f, value=1)
"""
