"""Sessions: what a launch costs the one who waits for it; many of them take no more memory than few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from harness import Row, at_most, bench, best_of, growth, ratio_at_most, resident_memory, sized
from megatile.hda import machine
from megatile.language import tl
from megatile.plan.model import Plan
from megatile.runtime.host.engine import Engine
from megatile.sim import Session, simulate

RANKS, ELEMENTS = 8, 64
X = {"t": np.ones((RANKS, ELEMENTS), "f2")}


def scale(t_ptr, n_elem, tl):  # type: ignore[no-untyped-def]
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    tl.store(mine, tl.load(mine, (n_elem,)) * 1.0)


def shift(t_ptr, n_elem, tl):  # type: ignore[no-untyped-def]
    mine = t_ptr + tl.program_id(0) * n_elem * 2
    tl.send(dir="E", src=tl.load(mine, (n_elem,)))
    tl.store(mine, tl.recv(dir="W", shape=(n_elem,)))


def plan_of(kernel: Any) -> Plan:
    return tl.read_kernel(kernel, [tl.Tensor("t", (ELEMENTS,)), ELEMENTS], world_size=RANKS)


def launches(plans: list[Plan], count: int, inputs: Any = None) -> int:
    """So many launches of these plans at a time, one wait after another; how long they take."""
    with Session("ahbm", record=10_000) as session:
        for i in range(count // len(plans)):
            for plan in plans:
                session.submit(plan, None if i else inputs, data=inputs is not None)
            session.wait()
        return session.time_ps


def queued(plan: Plan, count: int) -> int:
    """So many launches that wait for their turn; how long they take."""
    with Session("ahbm", record=10_000) as session:
        for i in range(count):
            session.submit(plan, None if i else X)
        session.wait()
        return session.time_ps


def hosted(plan: Plan, count: int, pairs: bool) -> int:
    """So many launches through the host, one after another or in pairs that overlap; how long they take."""
    engine, at = Engine(machine("ahbm"), data=False), 0
    for i in range(count):
        launch, _ = engine.submit(plan, at + 7 * i * (i % 2), [0], beside=pairs)
        if i % 2 or not pairs:
            engine.settle(launch)
            at = launch.end_ps or 0
    return engine.end_ps


@bench("session")
def session() -> Iterator[Row]:
    alone, ring = plan_of(scale), plan_of(shift)
    halves = [ring.part(range(4)), ring.part(range(4, 8))]
    launches([alone], 10)
    n = sized(1000, 4)
    # First of all: later ones leave memory with the process.
    few, many = (resident_memory(lambda c=count: launches([alone], c, X)) for count in (n, 10 * n))
    yield Row(f"{n} launches", best_of(lambda: launches([alone], n)), "s", bar=at_most(2.0))
    yield Row("with data", best_of(lambda: launches([alone], n, X)), "s", bar=at_most(2.0))
    yield Row("messages between two", best_of(lambda: launches(halves, n)), "s", bar=at_most(2.0))
    yield Row("through the host", best_of(lambda: hosted(alone, n, False)), "s", bar=at_most(2.0))
    what = f"through the host, in {n // 2} pairs that overlap, no two alike"
    yield Row(what, best_of(lambda: hosted(alone, n, True)), "s", bar=at_most(2.0))
    yield Row("submitted with data before one wait", best_of(lambda: queued(alone, n)), "s", bar=at_most(4.0))
    together, one = launches(halves, 2), simulate(ring, machine="ahbm").time_ps
    yield Row("two halves against the whole", together, "ps", one, "one launch", ratio_at_most(1.0))
    yield from growth(
        "launches", lambda n: best_of(lambda: launches([alone], n), 1), 100, "s", bar=ratio_at_most(12)
    )
    yield Row(f"memory of {10 * n:_} launches", many, "B", few, f"{n}", ratio_at_most(1.2))
