"""``records/arena.py``: the memory of tables."""

from __future__ import annotations

from megatile.records.rows import show
from megatile.sim.arena import Arena
from megatile.sim.state import Queue


def test_totals_and_rows_of_an_arena() -> None:
    arena = Arena()
    arena.clock = 7
    arena.append("queues", Queue.row(sent=3, taken=1, slots=2))
    assert arena.clock == 7
    assert arena.queues[0].taken == 1
    assert show(arena.queues[0]).startswith("Queue(sent=3, taken=1, slots=2, ring=-1")
