"""A Plan as a table of commands: one row per command of a stream, integers only. The engine runs it.

`CodeTables` are the tables of several plans, which grow; `CommandTable` adds the rows of one plan to them;
`Simulation.tabulate` copies what is new into the engine's memory. What is made of what:

* A stream: rows of instructions, with the operands of their class in `instructions` (`stream_table`). All
  units of a stream share them, whatever their number.
* A unit of a stream, when it runs: a *frame* of integers. `StreamTable` says what each *cell* of it holds
  (the unit's number, a loop's index, a carried integer, ...) and what it begins with.
* An expression: a constant, a cell, or bytecode over cells (`expressions`).
* A tile: a *storage* for each of its buffers, numbered within the plan; after those of all tiles come the
  slots of queues, which are storages too. A name of a message or a carried tile is a cell that holds the
  storage that was meant when it was bound.
* A version of a tile: a cell counts the versions, from 0; a fresh command counts up, then version v means
  buffer ``v % versions`` (`engine.accesses.storage_meant`), so that it waits for the accesses to version
  ``v - versions``, which had the same one.
* A group: a *rendezvous* for each of its keys, and a list that gives every unit its own.

Rows of code, lists, regions, tiles, expressions and streams have their final numbers at once: rows of other
plans come before or after them, nothing moves. Storages, channels, flags, rendezvous and levels belong to a
launch and are numbered within the plan here; the engine adds the first number that the launch has of each
(`state.LaunchRow`; `LaunchRows` writes that). So several launches share one plan's code.

What belongs to a level above the stream's is that of instance ``unit // per``, with ``per`` instances of the
stream's level in each. Nothing here knows a machine or time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.expr import constant
from megatile.plan import model as pm
from megatile.plan.code import compile_plan
from megatile.plan.cohort import of_units
from megatile.plan.memory import aliases
from megatile.plan.statements import regions_of
from megatile.sim.expressions import ExpressionTables
from megatile.sim.instructions import (
    COPY,
    END,
    RECEIVE,
    RECEIVE_ANY,
    CopyRow,
    EndRow,
    InstructionRow,
    TakeRow,
)
from megatile.sim.state import DMA, NONE
from megatile.sim.stream_table import StreamTable

ENGINES = ("tensor", "vector", "channel", "control")
"""The engine queues of every instance but those of DMA engines, which follow: the unnamed one, those that
copies name (`CommandTable.movers`), then the further virtual channels of messages."""
assert len(ENGINES) == DMA
MAX_SLOTS = 1 << 26
"""Slots of all queues of a unit: their rows alone would fill the memory beyond."""
IDLE_STREAM = 0
"""The stream that does nothing: it ends at once. Launches that are withdrawn have it (`LaunchRows`)."""
TABLES = ("code", "expressions", "bytecode", "constants", "lists", "regions", "tiles", "aliases", "streams")
"""Tables of the engine that grow with every plan; fields of `CodeTables` have their names."""


class CodeTables(ExpressionTables):
    """The tables of several plans. They only grow, so that numbers of rows stay valid."""

    def __init__(self) -> None:
        super().__init__()
        self.code: list[list[int]] = [EndRow.row(kind=END, ended=0)]
        self.statements: list[Any] = [None]
        """The statement of every row of code."""
        self.lists = array("q", [0])
        """Lists of numbers one after another; operands say where one begins (0: an empty one)."""
        self.regions: list[list[int]] = []
        self.tiles: list[list[int]] = []
        self.memory_of: list[tuple[tuple[int, ...], int]] = []
        """Rows of `storages`, and how many storages one after another have each."""
        self.storage_count = 0
        """How many rows of `storages` there are."""
        self.aliases: list[int] = []
        self.dimensions = 1
        """The most dimensions of a region or tile."""
        self.streams: list[tuple[int, int, int]] = [(0, 0, 1)]
        self.made: dict[str, Any] = {}
        """Tables as arrays of their numbers, where they were made before."""

    def copy(self) -> CodeTables:
        """Return the same tables, to which others may be added."""
        found = CodeTables.__new__(CodeTables)
        for name, value in vars(self).items():
            grows = isinstance(value, (list, dict, array))
            setattr(found, name, copy(value) if grows else value)
        return found

    def ends(self, pc: int) -> tuple[int, ...]:
        """Return the regions from and to which an instruction copies (NONE: out of a queue); empty if it does
        not. All kinds that copy are here: `PathQueries.path` refuses a copy of another kind."""
        row, lists = self.code[pc], self.lists
        if row[InstructionRow.kind] == COPY:
            at = row[CopyRow.regions]
            return lists[at + 1], lists[at + lists[at]]
        receives = row[InstructionRow.kind] in (RECEIVE, RECEIVE_ANY)
        return (NONE, row[TakeRow.into]) if receives and row[TakeRow.into] != NONE else ()

    def rest(self, pc: int) -> Iterator[int]:
        """Yield the instructions of a stream from one on, without its END."""
        while self.code[pc][InstructionRow.kind] != END:
            yield pc
            pc += 1

    def list(self, numbers: Iterable[int]) -> int:
        """Return where a list of numbers begins, its length first."""
        values = list(numbers)
        return self.raw([len(values), *values]) if values else 0

    def raw(self, numbers: Iterable[int]) -> int:
        """Return where numbers begin."""
        at = len(self.lists)
        self.lists.extend(numbers)
        return at


class CommandTable:
    """The rows of one plan, and what its launches need to know: names and numbers of all that it declares.

    What is numbered per launch is numbered from 0 here (see above)."""

    def __init__(self, plan: pm.Plan, tables: CodeTables) -> None:
        # Regions of whole tiles have no bounds, but their blocks in caches have as many dimensions.
        tables.dimensions = max([tables.dimensions, *(len(tile.shape) for tile in plan.tiles)])
        self.plan = plan
        self.code_tables = tables
        self.tiles = {tile.name: number for number, tile in enumerate(plan.tiles)}
        named: dict[str, tuple[Any, ...]] = {"channels": plan.channels, "flags": plan.flags}
        self.numbers = {kind: {x.name: n for n, x in enumerate(each)} for kind, each in named.items()}
        """The numbers of channels and flags, by name."""
        self.visible = {tile.name for tile in plan.tiles if tile.shared}
        """Tiles that more than one unit may see."""
        self.all_own = not plan.levels and not self.visible
        """Whether what a region names without an owner (``at``) is always the unit's own."""
        level_of = {tile.name: tile.level for tile in plan.tiles}
        for stream, body in zip(plan.streams, plan.bodies, strict=True):
            for statement in body:
                for r in regions_of(statement):
                    if r.at is not None or level_of.get(r.tile, stream.level) != stream.level:
                        self.visible.add(r.tile)
        self.levels = {level.name: number for number, level in enumerate(plan.all_levels)}
        self.actors = sum(plan.instances(name) for name in self.levels)
        """Instances of all levels."""
        self._storages()
        self._groups()
        self.stream_base = len(tables.streams)
        self.streams = [StreamTable(self, code) for code in compile_plan(plan)]
        tables.streams += [(s.first, s.template, len(s.frame)) for s in self.streams]
        self._levels()

    def _levels(self) -> None:
        """Of every level: which stream its instances have, and where they stand in their parent."""
        plan, tables = self.plan, self.code_tables
        self.stream_of: list[Any] = []
        """Per level, the stream of every instance (counted in the plan; NONE: none)."""
        self.level_lists: list[tuple[int, int, int]] = []
        """Per level: its list of streams (NONE: there is one), that stream, its list of places."""
        for level in plan.all_levels:
            # There may be many instances: the smallest integers that can count the streams will do.
            kind = np.min_scalar_type(-1 - len(plan.streams))
            found = np.full(plan.instances(level.name), NONE, dtype=kind)
            mine = [n for n, s in enumerate(plan.streams) if plan.level(s.level) is level]
            for n in mine:
                for run in plan.streams[n].units:
                    found[slice(*run) if run[2] > 0 else np.arange(*run)] = n
            self.stream_of.append(found)
            streams, one, places = NONE, NONE, NONE
            if len(mine) == 1:
                one = self.stream_base + mine[0]
            elif mine:
                streams = tables.raw((found.astype(np.int64) + self.stream_base).tolist())
            if plan.levels and level.slots is None:
                places = tables.raw(of_units(level.place, level.count).tolist())
            self.level_lists.append((streams, one, places))

    def engine_queue_count(self, virtual_channels: int) -> int:
        """Return how many queues of commands an instance needs: one for each engine, for each DMA engine that
        copies name, and for each virtual channel of messages (the first of these is the DMA engine's own)."""
        return DMA + virtual_channels + len(self.movers) - 1

    def engine_queue_of_messages(self, virtual_channel: Any) -> Any:
        """Return the engine queue of messages on a virtual channel of the DMA engine (or on an array of
        these)."""
        return DMA + virtual_channel + (len(self.movers) - 1) * (virtual_channel > 0)

    @property
    def engine_names(self) -> list[str]:
        """The names of the engine queues, without further virtual channels of messages."""
        return [*ENGINES, *(f"dma.{name}" if name else "dma" for name in self.movers)]

    def engine_queue(self, engine: str) -> int:
        """Return the engine queue of an engine by its name (``vector``, ``dma``, ``dma.tma``), which counts
        as used from now on."""
        kind, _, by = engine.partition(".")
        if kind == "dma" and by not in self.movers:
            self.movers.append(by)
        found = DMA + self.movers.index(by) if kind == "dma" else ENGINES.index(kind)
        self.used_engine_queues.add(found)
        return found

    def find(self, kind: str, name: str, level: str | None) -> tuple[int, int]:
        """Return the number of one of the plan's ``channels`` or ``flags``, and how many instances of a level
        are in one of its level."""
        number = self.numbers[kind][name]
        return number, self.plan.per(level, getattr(self.plan, kind)[number].level) or 1

    # storages

    def _storages(self) -> None:
        """Number the storages of tiles and slots, and describe each as every level sees it."""
        plan, tables, count = self.plan, self.code_tables, 0
        self.base: list[int] = []
        """The first storage of every tile; ``slot_base``: of the slots of every channel."""
        self.movers: list[str] = [""]
        """The DMA engines that copies name, by number."""
        self.used_engine_queues = {DMA} if self.plan.channels else set[int]()
        """The engine queues that commands use, without further virtual channels of messages."""
        numbers: dict[str, int] = {}
        described: list[tuple[int, int, pm.Tile | None]] = []

        def memory(name: str, times: int, tile: pm.Tile | None = None) -> None:
            described.append((numbers.setdefault(name, len(numbers)), times, tile))

        for tile in self.plan.tiles:
            self.base.append(count)
            count += tile.versions
            memory(tile.memory, tile.versions, tile)
        self.first_slot = count
        self.slot_base: list[int] = []
        for channel in self.plan.channels:
            self.slot_base.append(count)
            count += channel.members * channel.slots
            if count - self.first_slot > MAX_SLOTS:
                raise pm.PlanError(
                    f"channel '{channel.name}' has {channel.members} members of {channel.slots} slots in "
                    "every unit: too many to be simulated",
                    advice="use fewer slots",
                )
            memory(channel.memory, channel.members * channel.slots)
        self.storages, self.memories = count, list(numbers)
        """How many storages there are, and the memories that are named, by number."""
        self.memory_base = tables.storage_count
        """Every level has rows of its own for all storages."""
        owners = {tile.name: self._owners(tile) for tile in plan.tiles}
        for name, own in self.levels.items():
            for number, times, placed in described:
                seen = (own, 1, NONE, NONE, 0)
                if placed is not None:
                    level = self.levels[plan.level(placed.level).name]
                    seen = (level, plan.per(name, placed.level) or 0, *owners[placed.name])
                spread = (NONE, 0)
                if placed is not None and placed.over is not None:
                    spread = (self.levels[placed.over], prod(placed.block_grid))
                tables.memory_of.append(((number, 0, *seen, *spread, NONE), times))
        tables.storage_count += len(self.levels) * count
        self.over = aliases(self.plan)
        """Tiles of scratch that share an address, each with the first of them: accesses to one may conflict
        with those to the others, so every storage has a list of these (`alias_base`)."""
        self.alias_base = NONE
        if self.over:
            self.alias_base = len(tables.aliases)
            together: dict[str, list[str]] = {}
            for name, first in self.over.items():
                together.setdefault(first, []).append(name)
            lists = [NONE] * count
            for names in together.values():
                numbered = [
                    (self.base[self.tiles[n]] + v, n)
                    for n in names
                    for v in range(self.plan.tile(n).versions)
                ]
                for number, name in numbered:
                    lists[number] = tables.list([other for other, tile in numbered if tile != name])
            tables.aliases += lists

    def _owners(self, tile: pm.Tile) -> tuple[int, int, int]:
        """Of a tile with sharers: lists of the owner of every unit, and of the first unit of every owner."""
        if not tile.shared:
            return NONE, NONE, 0
        count = self.plan.instances(tile.level)
        units = np.arange(count, dtype=np.int64)
        owners = of_units(tile.owner, count)
        first = np.full(max(self.plan.owners(tile), int(owners.max()) + 1), NONE, dtype=np.int64)
        first[owners[::-1][owners[::-1] >= 0]] = units[::-1][owners[::-1] >= 0]
        return self.code_tables.raw(owners.tolist()), self.code_tables.raw(first.tolist()), len(first)

    def storage_name(self, storage: int) -> tuple[str, str]:
        """(memory, name of the tile or channel) of a storage."""
        if storage < self.first_slot:
            number = int(np.searchsorted(self.base, storage, side="right")) - 1
            tile = self.plan.tiles[number]
            return tile.memory, tile.name
        number = int(np.searchsorted(self.slot_base, storage, side="right")) - 1
        channel = self.plan.channels[number]
        return channel.memory, channel.name

    # groups

    def _groups(self) -> None:
        """Number the rendezvous of all groups and keys. A list per group gives every unit the rendezvous at
        which it meets others (NONE: it has no part); ``members`` are the units of each rendezvous."""
        self.members: list[tuple[int, ...]] = []
        self.group_lists: dict[str, int] = {}
        for group in self.plan.groups:
            count, key = self.plan.instances(group.level), constant(group.key)
            if key is not None and key >= 0:  # one rendezvous of all units
                self.group_lists[group.name] = self.code_tables.raw([len(self.members)] * count)
                self.members.append(tuple(range(count)))
                continue
            keys = of_units(group.key, count)
            found, inverse, sizes = np.unique(keys, return_inverse=True, return_counts=True)
            parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(sizes)[:-1])
            numbers = np.full(len(found), NONE, dtype=np.int64)
            for i, key in enumerate(found.tolist()):
                if key >= 0:
                    numbers[i] = len(self.members)
                    self.members.append(tuple(parts[i].tolist()))
            self.group_lists[group.name] = self.code_tables.raw(numbers[inverse].tolist())


def flat(rows: Any) -> Any:
    """Return the numbers of rows, or of a list, one after another."""
    if isinstance(rows[0], int):
        return np.array(rows, dtype=np.int64)
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64)


@cached_in_owner
def tabulated(plan: pm.Plan) -> CommandTable:
    """Return the rows of a plan alone. A simulation goes on with a copy of its tables (`Simulation.add`), so
    that a plan is tabulated once however often it is simulated."""
    table = CommandTable(plan, CodeTables())
    tables = {name: getattr(table.code_tables, name) for name in TABLES}
    table.code_tables.made = {name: flat(rows) for name, rows in tables.items() if rows}
    return table
