"""Units that go in step take the times that the engine finds for each; what needs more is left to it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.sim.toys import toy

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.core.expr import select, table, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import Session, in_step, simulate, symmetry
from megatile.sim.in_step import InStep, NotInStep, may_be_in_step
from megatile.sim.launches import TimeBudgetExceeded
from megatile.timing.faults import current_faults, faults
from megatile.timing.resources import Resources


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few units there are and however little they do, it is tried."""
    monkeypatch.setattr(in_step, "LEAST", 2)
    monkeypatch.setattr(symmetry, "LARGE", 0)


def in_step_ps(plan: Plan, hda: Any) -> int | None:
    """When a plan ends if its units go in step; None where they do not."""
    resources = Resources(hda, plan)
    if not may_be_in_step(plan, resources):
        return None
    try:
        found = InStep(resources, resources.start_ps(0))
        assert found.run()
    except NotInStep:
        return None
    assert found.messages == simulate(plan, machine=hda).messages
    return found.last


def uneven(seed: int) -> Plan:
    """Blocks and work of other sizes in every unit and round, sent to one or two neighbours; loops, carried
    and kept messages, new versions, copies, branches."""
    rng = random.Random(seed)
    n, far, size = rng.randrange(2, 9), rng.randrange(1, 3), 24
    b = PlanBuilder(f"uneven{seed}", scale="core", units=n)
    x = b.tile("x", (n * size,), "f32", memory="local", role="inout")
    y = b.tile("y", (size,), "f32", memory="local", versions=rng.randrange(1, 3))
    z = b.tile("z", (2 * size,), "f32", memory="local", role="inout")
    channels = [
        b.channel(
            f"c{hop}", source=(unit - hop) % n, slot_bytes=4 * size, memory="local", slots=rng.randrange(1, 4)
        )
        for hop in (1, far + 1)
    ]
    lengths = [rng.randrange(1, size + 1) for _ in range(n)]
    fresh = rng.random() < 0.5
    b.compute("fill", y, [], value=1.0, fresh=fresh)
    with b.loop(0, rng.randrange(1, 6)) as loop:
        for hop, c in zip((1, far + 1), channels, strict=True):
            if hop > 1 and rng.random() < 0.5:
                continue
            # What unit u sends in this round, and so what unit u + hop gets.
            block = (unit + rng.randrange(n) - loop.index) % n
            length = table(lengths, block)
            gone = table(lengths, (block - hop) % n)
            at = block * size
            b.send(c, x[at : at + length], to=(unit + hop) % n)
            there = ((block - hop) % n) * size
            kind = rng.randrange(4)
            if kind == 0:
                b.receive(c, (gone,), "f32", into=x[there : there + gone])
            elif kind == 1:
                m = b.receive(c, (gone,), "f32")
                b.compute("add", x[there : there + gone], [x[there : there + gone], m])
            elif kind == 2:
                m = b.receive(c, (gone,), "f32")
                b.compute("exp", z[unit % 5 : unit % 5 + gone], [m])
                b.copy(x[there : there + gone], m)
            else:
                m = b.receive(c, (gone,), "f32")
                b.send(c, m, to=(unit + hop) % n)
                b.receive(c, (table(lengths, (block - 2 * hop) % n),), "f32")
        if rng.random() < 0.5:
            with b.when(loop.index % 2):
                b.compute("exp", z[0 : select(unit % 3, 4, 9)], [z[0 : select(unit % 3, 4, 9)]])
        if rng.random() < 0.5:
            b.copy(y, z[size : 2 * size], fresh=fresh)
            b.compute("add", z[0:size], [z[0:size], y], engine=rng.choice(("vector", "tensor")))
    return b.finish()


@pytest.mark.parametrize("seed", range(60))
def test_random_uneven_units(seed: int) -> None:
    plan = uneven(seed)
    hda = toy(
        plan.units,
        ("ring", "full_mesh")[seed % 2],
        network={"granule": "8 B"} if seed % 3 == 0 else {},
        control=seed % 5 == 0,
    )
    try:
        expected = simulate(plan, machine=hda, engine="plain").time_ps
    except MegatileError:
        assert in_step_ps(plan, hda) is None
        return
    assert in_step_ps(plan, hda) in (expected, None)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_ring_over_unlike_links(nodes: int, everything: None) -> None:
    hda = mt.machine("h100-cluster", nodes=nodes)
    plan = mt.collective("all_reduce", machine=hda, nbytes=4004, algorithm="ring")
    assert in_step_ps(plan, hda) == simulate(plan, machine=hda, engine="plain").time_ps


def pairs(n: int = 8, rounds: int = 40, slot: int = 64) -> Plan:
    """Units of uneven work in a ring."""
    b = PlanBuilder("uneven", scale="core", units=n)
    x = b.tile("x", (16,), "f32", memory="local", role="inout")
    c = b.channel("c", source=(unit - 1) % n, slot_bytes=slot, memory="local")
    part = x[0 : unit * 7 % 16 + 1]
    with b.loop(0, rounds):
        b.compute("exp", part, [part])
        b.send(c, x, to=(unit + 1) % n)
        b.compute("add", x, [x, b.receive(c, (16,), "f32")])
    return b.finish()


def test_simulate_uses_it_and_a_trace_is_made_later(everything: None) -> None:
    plan, hda = pairs(), toy(8)
    found = simulate(plan, machine=hda, record=False)
    assert found._run.simulation is None
    told = simulate(plan, machine=hda)
    assert (found.time_ps, found.messages) == (told.time_ps, told.messages)
    assert len(found.trace) == len(told.trace)


@pytest.mark.parametrize("change", ["faults", "shared link", "empty block", "full slot"])
def test_the_engine_does_what_needs_more(change: str, everything: None) -> None:
    plan, hda = pairs(), toy(8, "switch" if change == "shared link" else "ring")
    if change == "faults":
        with faults(straggler={1: 2.0}):
            assert not may_be_in_step(plan, Resources(hda, plan, current_faults()))
        return
    if change == "full slot":
        with pytest.raises(MegatileError, match="does not fit"):
            simulate(pairs(slot=32), machine=hda, record=False)
        return
    if change == "empty block":
        b = PlanBuilder("empty", scale="core", units=8)
        x = b.tile("x", (16,), "f32", memory="local", role="inout")
        with b.loop(0, 4) as loop:
            b.compute("exp", x[0 : (unit + loop.index) % 3], [x[0 : (unit + loop.index) % 3]])
        plan = b.finish()
        assert in_step_ps(plan, hda) is None
    expected = simulate(plan, machine=hda, engine="plain").time_ps
    assert simulate(plan, machine=hda, record=False).time_ps == expected


def test_a_budget_of_seconds_stops_it_and_it_goes_on(everything: None) -> None:
    plan, hda = pairs(), toy(8)
    session = Session(hda, record=0)
    launch = session.submit(plan)
    with pytest.raises(TimeBudgetExceeded):
        session.wait(launch, seconds=0)
    assert launch._in_step.pc
    other = Session(hda)
    assert session.wait(launch).time_ps == other.wait(other.submit(plan)).time_ps
    assert launch._launched is None
