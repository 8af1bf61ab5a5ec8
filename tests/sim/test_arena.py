"""``sim/arena.py``: the memory of the engine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.records import arena
from megatile.sim import simulate
from megatile.sim.arena import LAYOUT, Arena, TableFull

BLOCKS, READS = 40, 20


def crowded() -> Plan:
    """Units load blocks from the memory that all share, then read all of them again and again: each of those
    commands waits forevery load."""
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
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets how much memory an arena has."""

    def set_space(nbytes: int) -> None:
        monkeypatch.setattr(arena, "RESERVED_BYTES", nbytes)
        monkeypatch.setattr(arena, "LEAST_BYTES", nbytes)
        arena._SPARE.clear()
        arena._divided.cache_clear()

    yield set_space
    arena._SPARE.clear()
    arena._divided.cache_clear()


@pytest.mark.parametrize("engine", ["plain", "compiled"])
@pytest.mark.parametrize(("shares", "table"), [({}, "commands"), ({"commands": 60, "answers": 9}, "nodes")])
def test_a_full_table_is_named_and_room_for_all_changes_nothing(
    engine: str, shares: Any, table: str, space: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, hda = crowded(), toy(3)
    expected = simulate(plan, machine=hda, engine=engine).time_ps
    monkeypatch.setattr(LAYOUT, "shares", shares)
    full, enough = list[str](), 0
    for mebibytes in range(2, 30, 2):
        space(mebibytes << 20)
        try:
            assert simulate(plan, machine=hda, engine=engine, record=False).time_ps == expected
        except TableFull as error:
            full.append(str(error).split("'")[1])
        else:
            enough += 1
    assert full[-1] == table
    assert enough > 3


def test_more_rows_than_a_table_has_are_refused() -> None:
    with pytest.raises(TableFull, match="rows in its table 'units'") as units:
        Arena().extend("units", 1 << 40)
    assert units.value.advice == "simulate fewer units or a smaller problem"
    assert TableFull("records", 9).advice == "simulate with record=False"


def test_many_arenas_leave_address_space_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are kept have their arenas: 1000 of 128 GiB would be all that there is."""
    gc.collect()  # so that none of another test goes while this one counts
    arena._SPARE.clear()
    arenas = [Arena() for _ in range(4)]
    monkeypatch.setattr(arena, "ADDRESS_SPACE", sum(arena._RESERVED.values()) + (1 << 40))
    later = [Arena() for _ in range(3)]
    assert [a.memory.nbytes for a in later] == [1 << 32, 1 << 31, 1 << 31]
    before = len(arena._RESERVED)
    del arenas, later
    gc.collect()
    assert len(arena._RESERVED) < before


def test_less_address_space_is_taken_where_more_is_not_granted(
    monkeypatch: pytest.MonkeyPatch, space: Callable[[int], None]
) -> None:
    asked: list[int] = []

    def refused(fileno: int, size: int, **options: int) -> object:
        asked.append(size)
        raise OSError(12, "Cannot allocate memory")

    space(1 << 30)
    monkeypatch.setattr(arena, "LEAST_BYTES", 1 << 28)
    monkeypatch.setattr(arena.mmap, "mmap", refused)
    assert len(arena._reserve()) == 1 << 25
    assert asked == [1 << 30, 1 << 29]


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_too_many_records_are_dropped_and_the_time_stays(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, hda = crowded(), toy(3)
    expected = simulate(plan, machine=hda, engine=engine)
    module = import_module("megatile.sim.simulate")
    monkeypatch.setattr(module, "MAX_RECORDS", 20)
    monkeypatch.setattr("megatile.sim.machine_run.command_count", lambda plan: 0)
    result = simulate(plan, machine=hda, engine=engine)
    assert result.time_ps == expected.time_ps
    assert not result.launch.simulation.complete_record
    assert len(result.trace) == len(expected.trace)


def test_memory_is_pooled_when_nobody_looks_at_a_table() -> None:
    arena._SPARE.clear()
    first = Arena()
    address, view = first.memory.ctypes.data, first.rows("asked")
    view[0, 0] = 7
    del first
    assert not arena._SPARE
    second = Arena()
    assert second.memory.ctypes.data != address
    assert view[0, 0] == 7
    del view
    third = Arena()
    assert third.memory.ctypes.data == address
    del second, third
    assert len(arena._SPARE) == 1
