"""What several files of tests/sim share."""

from __future__ import annotations

import pytest

from megatile.core.expr import unit
from megatile.language import tl
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan

TRIP = 1940
"""One message of the host on the toy machine: 600 latency + 1000 for 64 bytes + 300 driver + 40 core."""


def doubling(name: str = "double", units: int = 2) -> Plan:
    """One add of 64 floats: 5 + 64 ps."""
    b = PlanBuilder(name, scale="core", units=units)
    x = b.tile("x", (64,), "f32", memory="local", role="inout")
    b.compute("add", x, [x, x])
    return b.finish()


def read(kernel, n: int = 16, units: int = 8, extra: tuple = (), **options) -> Plan:
    arguments = [tl.Tensor("t", (n,)), n, *extra]
    return tl.read_kernel(kernel, arguments, world_size=units, slot_size=64, **options)


ENGINES = pytest.mark.parametrize("engine", ["plain", "compiled"])


def everything(rounds: int = 3, units: int = 4) -> Plan:
    """Copies, work, messages, signals, collectives and values that are read."""
    b = PlanBuilder("everything", scale="core", units=units)
    x = b.tile("x", (8, 64), "f32", memory="local", role="inout")
    y = b.tile("y", (64,), "f32", memory="local", versions=2)
    n = b.tile("n", (1,), "i32", memory="local", role="input")
    c = b.channel("c", source=(unit - 1) % units, slot_bytes=256, memory="local")
    flag, group = b.flag("flag"), b.group("all")
    times = b.read_scalar(n, 9, "times")
    with b.loop(0, rounds) as loop:
        b.copy(y, x[loop.index % 8, 0:64], fresh=True)
        b.compute("exp", y, [y])
        b.send(c, y, to=(unit + 1) % units)
        b.receive(c, (64,), "f32", into=y)
        b.signal(flag, to=(unit + 1) % units)
        b.wait(flag, loop.index + 1)
    with b.loop(0, times):
        b.barrier(group)
    return b.finish()
