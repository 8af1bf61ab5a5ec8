"""The memory of the engine: all tables of `state` in one array of integers."""

from __future__ import annotations

from typing import ClassVar

from megatile.core.limits import OutOfMemory
from megatile.records import arena
from megatile.records.arena import ArenaLayout, Memory
from megatile.records.rows import NONE
from megatile.sim import state
from megatile.sim.state import State

LAYOUT = ArenaLayout(
    State,
    vars(state),
    filled={
        "commands": "top_command", "nodes": "top_node", "pending": "top_pending", "spans": "top_span",
        "records": "recorded", "recorded_accesses": "recorded_words", "events": "event_count",
        "todo": "todo_count", "ready": "ready_count",
    },
    rooms={"answers": 256, "buckets": 0, "asked": NONE, "accesses": NONE, "scratch": NONE},
    dimensions={"pending": 2, "accesses": 2, "spans": 3},
    shares={"records": 24, "recorded_accesses": 24},
    none=("free_command", "free_node", "free_pending", "free_span", "full"),
)  # fmt: skip


class TableFull(OutOfMemory):
    """A table of the engine has no room for another row."""

    def __init__(self, name: str, rows: int) -> None:
        recorded = name in ("records", "recorded_accesses")
        super().__init__(
            f"the simulation needs more than {rows:,} rows in its table '{name}'",
            advice="simulate with record=False" if recorded else "simulate fewer units or a smaller problem",
        )


class Arena(Memory, State, view=True):
    """The tables and totals of one simulation, as attributes (``arena.clock``, ``arena.units[3].now``);
    ``arena.rows("units")`` is an array."""

    layout: ClassVar[ArenaLayout] = LAYOUT

    def __init__(self) -> None:
        super().__init__()
        self.rows("answers")[:] = NONE

    def no_room(self, name: str) -> Exception:
        if self.memory.nbytes < arena.RESERVED_BYTES:
            return super().no_room(name)
        return TableFull(name, self.most(name))


def _table(name: str) -> property:
    return property(lambda arena: arena.table(name))


for _name, _field in State.fields.items():
    setattr(Arena, _name, _table(_name) if _name in LAYOUT.tables else _field.of_row())
Arena._view = Arena
