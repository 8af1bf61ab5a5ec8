"""How far an instance runs ahead of time is a matter of memory: it changes no times."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import TimingError, plain, simulate


def loops(seed: int) -> Plan:
    """Loops of loads, work and stores on a few tiles, one after another and in each other."""
    rng = random.Random(seed)
    b = PlanBuilder(f"loops{seed}", scale="core", units=3)
    x = b.tile("x", (8, 64), "f32", memory="common", role="inout", owner=unit * 0, owners=1)
    t = [b.tile(f"t{i}", (64,), "f32", memory="local", versions=rng.randint(1, 3)) for i in range(3)]
    acc = [b.tile(f"acc{i}", (64,), "f32", memory="local") for i in range(2)]
    flag = b.flag("flag")

    def some(depth: int) -> None:
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(["load", "load", "work", "work", "store", "fill", "loop"])
            near, far = rng.choice(t), x[rng.randrange(8), 0:64]
            if kind == "load":
                b.copy(near, far, fresh=rng.random() < 0.7)
            elif kind == "work":
                one = rng.choice(acc)
                b.compute("add", one, [one, near], engine=rng.choice(["vector", "tensor"]))
            elif kind == "store":
                b.copy(far, rng.choice(acc))
            elif kind == "fill":
                b.compute("fill", rng.choice([*t, *acc]), value=1.0)
            elif depth < 2:
                with b.loop(0, rng.randint(1, 5) + unit):
                    some(depth + 1)

    some(0)
    with b.loop(0, rng.randint(4, 9)):
        some(1)
    if rng.random() < 0.5:
        b.compute("exp", acc[0], [acc[0]])
    if rng.random() < 0.3:
        b.signal(flag, to=(unit + 1) % 3)
        b.wait(flag, 1)
    return b.finish()


@pytest.mark.parametrize("shared", [False, True])
def test_times_do_not_depend_on_how_far_instances_run_ahead(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = 0
    ahead = plain.engine().far_ahead

    def counted(*arguments: Any) -> Any:
        nonlocal stopped
        stopped += (found := ahead(*arguments))
        return found

    monkeypatch.setattr(plain.engine(), "far_ahead", counted)
    hda = toy(3, vector={"level": "box"} if shared else {})
    for seed in range(60):
        found = []
        for limit in (1, 4, 1 << 40):
            monkeypatch.setattr("megatile.sim.simulation.RUN_AHEAD", limit)
            result = simulate(loops(seed), machine=hda, engine="plain")
            events = [(e.unit, e.engine, e.operation, e.start_ps, e.end_ps) for e in result.trace]
            found.append((result.time_ps, sorted(events)))
        assert found[0] == found[1] == found[2], seed
    assert stopped > 100


def beside(rounds: int) -> Plan:
    """Loads that wait for the memory of all, beside work of an engine that each unit has for itself."""
    b = PlanBuilder("beside", scale="core", units=2)
    x = b.tile("x", (8, 64), "f32", memory="common", role="input", owner=unit * 0, owners=1)
    t, u = (b.tile(name, (64,), "f32", memory="local") for name in "tu")
    with b.loop(0, rounds) as loop:
        b.copy(t, x[loop.index % 8, 0:64])
        b.compute("exp", u, [u])
    return b.finish()


def elementwise(rounds: int) -> Plan:
    """Every round writes another block, which no later one touches; then the units wait for each other."""
    b = PlanBuilder("elementwise", scale="core", units=2)
    x, y = (b.tile(name, (rounds, 64), "f32", memory="common", role="inout") for name in "xy")
    flag = b.flag("flag")
    with b.loop(0, rounds) as loop:
        b.compute("exp", y[loop.index, 0:64], [x[loop.index, 0:64]])
    b.signal(flag, to=1 - unit)
    b.wait(flag, 1)
    return b.finish()


def streamed(rounds: int) -> Plan:
    """Blocks come from the memory of all, are changed and go back; engines always have the next one."""
    b = PlanBuilder("streamed", scale="core", units=2)
    x, y = (b.tile(name, (rounds, 64), "f32", memory="common", role="inout") for name in "xy")
    t = b.tile("t", (64,), "f32", memory="local", versions=2)
    with b.loop(0, rounds) as loop:
        b.copy(t, x[loop.index, 0:64], fresh=True)
        b.compute("exp", t, [t])
        b.copy(y[loop.index, 0:64], t)
    return b.finish()


def reading(rounds: int) -> Plan:
    """Every round reads what was written once, before the loop."""
    b = PlanBuilder("reading", scale="core", units=2)
    t = b.tile("t", (rounds, 64), "f32", memory="local")
    u = b.tile("u", (64,), "f32", memory="local")
    b.compute("fill", t, value=1.0)
    with b.loop(0, rounds) as loop:
        b.compute("exp", u, [t[loop.index, 0:64]])
    return b.finish()


@pytest.mark.parametrize("engine", ["plain", "compiled"])
@pytest.mark.parametrize("make", [beside, elementwise, streamed, reading])
def test_memory_does_not_grow_with_the_rounds_of_a_loop(make: Any, engine: str) -> None:
    result = simulate(make(400), machine=toy(2), engine=engine, record=False)
    arena = result.launch.simulation.arena
    assert arena.top_command < 20
    assert arena.top_node < 40
    assert arena.top_pending < 40
    twice = simulate(make(800), machine=toy(2), engine=engine, record=False)
    assert abs(twice.time_ps - 2 * result.time_ps) < result.time_ps / 20


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_an_engine_that_falls_too_far_behind_is_an_error_with_the_line(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = toy(2, vector={"level": "box"})
    monkeypatch.setattr("megatile.sim.simulation.MAX_IN_FLIGHT", 1 << 8)
    assert simulate(beside(60), machine=shared, engine=engine, record=False).time_ps > 0
    with pytest.raises(TimingError, match=r"an engine of core\d falls behind a loop by \d+ commands"):
        simulate(beside(600), machine=shared, engine=engine, record=False)
