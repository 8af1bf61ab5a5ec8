"""Tables of the engine grow before they are full, though it is not looked at every instruction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import arena, plain, simulate
from megatile.sim.arena import ROOMS
from megatile.sim.state import State

BLOCKS, READS = 40, 20
FILLED = {
    "commands": State.top_command,
    "nodes": State.top_node,
    "pending": State.top_pending,
    "records": State.recorded,
}


def crowded() -> Plan:
    """Units load blocks from the memory that all share, then read all of them again and again: each of those
    commands waits for every load."""
    b = PlanBuilder("crowded", scale="core", units=3)
    x = b.tile("x", (BLOCKS, 64), "f32", memory="common", role="input", owner=unit * 0, owners=1)
    y = b.tile("y", (BLOCKS, 64), "f32", memory="local")
    sums = [b.tile(f"sum{i}", (BLOCKS, 64), "f32", memory="local") for i in range(READS)]
    for block in range(BLOCKS):
        b.copy(y[block], x[block])
    for total in sums:
        b.compute("exp", total, [y])
    return b.finish()


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets how many rows tables have room for at first."""

    def set_room(**rows: int) -> None:
        monkeypatch.setattr(arena, "ROOM", arena.ROOM | rows)
        arena._beginning.cache_clear()

    monkeypatch.setattr("megatile.sim.simulation.LIVE", {})
    yield set_room
    monkeypatch.undo()
    arena._beginning.cache_clear()


def seen(plan: Plan, engine: str) -> tuple[int, Any]:
    result = simulate(plan, machine=toy(3), engine=engine)
    return result.time_ps, result.record.rows.copy()


def test_tables_that_run_full_between_two_looks_grow_in_time(
    room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, looks, grown = crowded(), 0, 0
    expected = seen(plan, "plain")
    engine_functions = plain.engine()
    look, depend = engine_functions.no_room, engine_functions.depend

    def watched(s: Any) -> Any:
        nonlocal looks, grown
        looks += 1
        found = look(s)
        grown += bool(found)
        return found

    def within(s: Any, *command: Any) -> None:
        depend(s, *command)
        for name, filled in FILLED.items():
            assert s[filled] <= s[ROOMS[name]], name

    monkeypatch.setattr(engine_functions, "no_room", watched)
    monkeypatch.setattr(engine_functions, "depend", within)
    for engine, step in (("plain", 97), ("compiled", 13)):
        for rows in range(100, 2400, step):
            room(nodes=rows, pending=rows, commands=max(1100, rows))
            time, records = seen(plan, engine)
            assert time == expected[0]
            np.testing.assert_array_equal(records, expected[1])
    assert grown > 20
    assert looks < 24 * 3 * (BLOCKS + READS) * 3  # by far not at every instruction and event
