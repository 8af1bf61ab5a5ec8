"""Plans: data execution beside bare NumPy, reading kernels, checking and pricing large rings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import megatile as mt
from harness import Row, at_most, bench, best_of, ratio_at_most, sized
from megatile.core.expr import unit
from megatile.cost.price import price
from megatile.language import tl as kernels
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan

UNITS, ELEMENTS = sized((256, 16384), (4, 64))  # 64 KiB of f32 per unit


def ring_kernel(t_ptr: Any, n_elem: int, world_size: int, tl: Any) -> None:
    mine = t_ptr + tl.program_id(0) * n_elem * 4
    total = tl.load(mine, shape=(n_elem,), dtype="f32")
    current = total
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype="f32")
        total = total + current
    tl.store(mine, total)


def read(units: int, elements: int = ELEMENTS) -> Plan:
    tensor = kernels.Tensor("t", (elements,), "f32")
    return kernels.read_kernel(ring_kernel, [tensor, elements, units], world_size=units)


def chunked_ring(units: int, chunk: int) -> Plan:
    b = PlanBuilder("ring", scale="pe", units=units)
    x = b.tile("x", (units, chunk), "f32", memory="tcm", role="inout")
    c = b.channel("ring", source=(unit - 1) % units, slot_bytes=4 * chunk, memory="tcm")
    with b.loop(0, units - 1) as loop:
        b.send(c, x[(unit - loop.index) % units], to=(unit + 1) % units)
        message = b.receive(c, (1, chunk), "f32")
        mine = x[(unit - loop.index - 1) % units]
        b.compute("add", mine, [mine, message])
    return b.finish()


def bare_numpy(x: Any) -> None:
    """The copies and additions of the ring, and nothing else."""
    total = [row.copy() for row in x]
    current = [row.copy() for row in total]
    for _ in range(len(x) - 1):
        current = [current[u - 1].copy() for u in range(len(x))]
        for mine, message in zip(total, current, strict=True):
            mine += message


@bench("plan data")
def data() -> Iterator[Row]:
    x = np.random.default_rng(0).random((UNITS, ELEMENTS), dtype=np.float32)
    plan = read(UNITS)
    ours = best_of(lambda: execute(plan, {"t": x}), 3)
    rival = best_of(lambda: bare_numpy(x), 3)
    yield Row(
        f"ring all-reduce with data, {UNITS} × {ELEMENTS * 4} B",
        ours,
        "s",
        rival,
        "bare NumPy",
        ratio_at_most(2.5),
    )


def bare_chunks(x: Any) -> None:
    """The same for the chunked ring: each step moves and adds one chunk of every unit."""
    total, units = [row.copy() for row in x], len(x)
    for step in range(units - 1):
        sent = [total[u - 1][(u - 1 - step) % units].copy() for u in range(units)]
        for u in range(units):
            total[u][(u - step - 1) % units] += sent[u]


@bench("plan chunks")
def chunks() -> Iterator[Row]:
    x = np.random.default_rng(0).random((UNITS, UNITS, ELEMENTS // UNITS), dtype=np.float32)
    plan = chunked_ring(UNITS, ELEMENTS // UNITS)
    ours = best_of(lambda: execute(plan, {"x": x}), 3)
    rival = best_of(lambda: bare_chunks(x), 3)
    yield Row(
        f"chunked reduce-scatter, {UNITS} × {ELEMENTS * 4} B",
        ours,
        "s",
        rival,
        "bare NumPy",
        ratio_at_most(2.5),
    )


@bench("plan reading")
def reading() -> Iterator[Row]:
    n = sized(100_000, 100)
    yield Row(f"read a kernel for {n:_} units", best_of(lambda: read(n, 16)), "s", bar=at_most(0.012))
    ring = read(n, 16)
    yield Row(f"check a ring of {n:_} units", best_of(lambda: check(ring)), "s", bar=at_most(2.0))
    text = str(ring)
    yield Row("read its text back", best_of(lambda: Plan.from_text(text)), "s", bar=at_most(0.1))


@bench("plan price")
def prices() -> Iterator[Row]:
    """A ring through several SIPs takes some rounds until it repeats itself."""
    before: float | None = None
    for units in sized((128, 512, 2048), (128,)):
        machine, plan = mt.machine("ahbm", sips=units // 128), chunked_ring(units, 64)
        ours = best_of(lambda machine=machine, plan=plan: price(plan, machine), 2)
        rival = f"n = {units // 4}" if before else ""
        bar = at_most(20.0) if units == 2048 else None
        yield Row(f"price a chunked ring, n = {units}", ours, "s", before, rival, bar)
        before = ours
    before = None
    for trips in sized((10**3, 10**9), (10, 100)):
        plan = working(trips)
        ours = best_of(lambda plan=plan: price(plan, "ahbm"), 3)
        rival = "10^3 iterations" if before else ""
        name = f"price a loop of loads and work, {trips:.0e} iterations"
        yield Row(name, ours, "s", before, rival, ratio_at_most(3) if before else None)
        before = ours


def working(trips: int) -> Plan:
    """Loads into two buffers in turns, and work on them."""
    b = PlanBuilder("work", scale="pe", units=8)
    x = b.tile("x", (64,), "f32", memory="hbm", role="input")
    y = b.tile("y", (64,), "f32", memory="tcm", versions=2)
    z = b.tile("z", (64,), "f32", memory="tcm", role="inout")
    with b.loop(0, trips):
        b.copy(y, x, fresh=True)
        b.compute("add", z, [z, y])
    return b.finish()
