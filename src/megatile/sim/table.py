"""A Plan as a table of commands: one row per command of a stream, integers only. The engine runs it.

Streams become flat lists of instructions with jumps; expressions become constants, places in an instance's
*frame* of integers, or bytecode; names of tiles become storages (the buffers of tiles, then the slots of
queues) or places in the frame that hold one. Nothing here knows a machine or time.

The operands of every kind of instruction are those of its class in `instructions`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.expr import Binary, Const, Expr, Select, Symbol, Table, constant, symbols
from megatile.plan import model as pm
from megatile.plan.cohort import spread
from megatile.plan.memory import aliases
from megatile.plan.statements import engine_of, reads_of, regions_of, write_of
from megatile.sim import state as st
from megatile.sim.instructions import (
    BYTECODE,
    CONSTANT,
    COPY,
    KEPT,
    LOAD,
    LOOKUP,
    NESTED,
    OPERATORS,
    PUSH,
    RECEIVE,
    RECEIVE_ANY,
    SELECT,
    STOP,
    SUM,
    SYMBOL,
    Branch,
    Copy,
    End,
    Free,
    Instruction,
    JoinRendezvous,
    Jump,
    LoopAgain,
    LoopEnter,
    LoopTest,
    Merge,
    ReadScalar,
    Receive,
    ReceiveAny,
    Send,
    Signal,
    Take,
    Wait,
    Work,
)
from megatile.sim.state import NONE, RegionRow

ENGINES = ("", "tensor", "vector", "channel", "control")
"""The queues of commands in every instance; the first stands for all accesses that others see. The virtual
channels of the DMA engine follow."""
DMA = st.DMA
assert len(ENGINES) == DMA
MOST_QUEUES = 1 << 31
TABLES = ("code", "expressions", "bytecode", "constants", "lists", "regions", "tiles", "aliases", "streams")
"""Tables that grow with every plan."""
DEEPEST = 200


class Rows:
    """Tables of several plans, growing; indices stay valid."""

    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.statements: list[Any] = []
        """The statement of every row of code."""
        self.expressions: list[tuple[int, int]] = []
        self.meanings: list[Meaning] = []
        """What every row of ``expressions`` stands for."""
        self.bytecode: list[tuple[int, int]] = []
        self.constants: list[int] = []
        self.lists = array("q", [0])
        self.regions: list[list[int]] = []
        self.tiles: list[list[int]] = []
        self.memory_of: list[tuple[tuple[int, ...], int]] = []
        """Rows, and how many storages one after another have each."""
        self.memories = 0
        self.aliases: list[int] = []
        self.dimensions = 1
        self.accesses = 2
        self.streams: list[tuple[int, int, int]] = []
        self.made: dict[str, Any] = {}
        """Tables as arrays, where rows were made before."""
        self._expressions: dict[Any, int] = {}
        self._tables: dict[tuple[int, ...], int] = {}

    def copy(self) -> Rows:
        """The same rows, to which others may be added."""
        found = copy(self)
        for name, value in vars(self).items():
            if not isinstance(value, int):
                setattr(found, name, copy(value))
        return found

    def _row(self, key: Any, row: tuple[int, int], node: Expr, names: dict[str, int]) -> int:
        known = self._expressions.get(key)
        if known is None:
            known = self._expressions[key] = len(self.expressions)
            self.expressions.append(row)
            self.meanings.append(Meaning(node, dict(names)))
        return known

    def expression(self, node: Expr, names: dict[str, int], kept: Kept) -> int:
        """The number of an expression whose symbols lie at ``names`` in the frame."""
        if isinstance(node, (Const, Symbol)):
            known = isinstance(node, Const)
            row = (CONSTANT, node.value) if known else (SYMBOL, names[node.name])  # type: ignore[union-attr]
            return self._row(row, row, node, {} if known else names)
        if (
            isinstance(node, Binary)
            and node.operator == "+"
            and isinstance(node.left, Symbol)
            and isinstance(node.right, Const)
        ):
            row, at = (names[node.left.name], node.right.value), len(self.bytecode)
            self.bytecode += [] if (SUM, row) in self._expressions else [row]
            return self._row((SUM, row), (SUM, at), node, names)
        code, deepest = self._emit(node, names, 0, kept)
        if deepest > DEEPEST:
            raise pm.PlanError(f"an expression is nested more than {DEEPEST} deep")
        first = kept.place(code, kept.scope(code), self, 2)
        if first is not None:
            return self._row((KEPT, first), (KEPT, first), node, names)
        at = len(self.bytecode)
        self.bytecode += [] if code in self._expressions else [*code, (STOP, 0)]
        return self._row(code, (BYTECODE, at), node, names)

    def _emit(self, node: Expr, names: dict[str, int], depth: int, kept: Kept) -> tuple[Code, int]:
        """Bytecode that leaves the value of ``node`` on the stack; how deep the stack becomes."""
        if isinstance(node, Const):
            return ((PUSH, node.value),), depth + 1
        if isinstance(node, Symbol):
            return ((LOAD, names[node.name]),), depth + 1
        if isinstance(node, Binary):
            parts: tuple[Expr, ...] = (node.left, node.right)
            last = (OPERATORS.index(node.operator), 0)
        elif isinstance(node, Select):
            parts, last = (node.condition, node.then, node.otherwise), (SELECT, 0)
        else:
            assert isinstance(node, Table)
            parts, last = (node.index,), (LOOKUP, self._table(node.values))
        emitted = [self._emit(part, names, depth + i, kept) for i, part in enumerate(parts)]
        scopes, code = [kept.scope(part) for part, _ in emitted], Code()
        for (own, _), scope in zip(emitted, scopes, strict=True):
            # What stays the same in more rounds than the whole, or takes long, is kept by itself.
            first = kept.place(own, scope, self, 1 if scope < max(scopes) else 3) if len(own) > 1 else None
            code += own if first is None else ((NESTED, first),)
        return (*code, last), max(deepest for _, deepest in emitted)

    def _table(self, values: tuple[int, ...]) -> int:
        known = self._tables.get(values)
        if known is None:
            known = self._tables[values] = len(self.constants)
            self.constants += [len(values), *values]
        return known

    def ends(self, pc: int) -> tuple[int, ...]:
        """The regions from and to which an instruction copies (NONE: out of a queue), if it does."""
        row, lists = self.code[pc], self.lists
        if row[Instruction.kind] == COPY:
            at = row[Copy.regions]
            return lists[at + 1], lists[at + lists[at]]
        receives = row[Instruction.kind] in (RECEIVE, RECEIVE_ANY)
        return (NONE, row[Take.into]) if receives and row[Take.into] != NONE else ()

    def instruction(self, statement: Any, kind: type[Instruction], **operands: int) -> int:
        """One more instruction; its number."""
        row = kind.row(kind=kind.KIND, **operands)
        self.code.append(row + [NONE] * (Instruction.width - len(row)))
        self.statements.append(statement)
        return len(self.code) - 1

    def list(self, numbers: Iterable[int]) -> int:
        """Where a list of numbers begins, its length first."""
        values = list(numbers)
        if not values:
            return 0
        at = len(self.lists)
        self.lists.extend([len(values), *values])
        return at

    def raw(self, numbers: Iterable[int]) -> int:
        at = len(self.lists)
        self.lists.extend(numbers)
        return at


class Meaning:
    """An expression whose symbols lie at places of the frame."""

    def __init__(self, node: Expr, names: dict[str, int]) -> None:
        self.node, self._names = node, names
        self._known: tuple[Any, Any] = None, None

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: self._names[name] for name in symbols(self.node)}

    @cached_property
    def _function(self) -> Any:
        return self.node.compile()

    def of_all(self, units: Any, frame: Any) -> tuple[Any, bool]:
        """The value for many instances, which have the integers of one of them but for their numbers; and
        whether it depends on nothing but these."""
        always = not any(self.places.values())
        if not (always and units is self._known[0]):
            env = {name: frame[place] if place else units for name, place in self.places.items()}
            self._known = units, spread(self._function(env), len(units)).astype(np.int64, copy=False)
        return self._known[1], always


Code = tuple[tuple[int, int], ...]
MOST_KEPT = 64
"""Expressions of a stream whose values every instance keeps."""


class Kept:
    """Places in the frame of a stream for values of expressions, as long as they stay the same."""

    def __init__(self, frame: list[int]) -> None:
        self.frame = frame
        self.loops: dict[int, tuple[float, int]] = {0: (0, 1)}
        """By the place of a loop's index (and of the unit's number): how many loops are around its body, and
        the place that counts its rounds."""
        self.within = 0
        """How many loops are around the statement at hand."""
        frame.append(1)
        self._known: dict[tuple[Any, ...], int] = {}
        self._scopes: dict[int, tuple[float, int]] = {}

    def scope(self, code: Code) -> tuple[float, int]:
        """How many loops are around what decides the value of bytecode (infinity where that is something
        else), and the place that counts the rounds for which it holds."""
        found: tuple[float, int] = (0, 1)
        for op, value in code:
            if op == LOAD:
                found = max(found, self.loops.get(value, (float("inf"), 0)))
            elif op == NESTED:
                found = max(found, self._scopes[value])
        return found

    def place(self, code: Code, scope: tuple[float, int], rows: Rows, least: int) -> int | None:
        """Where bytecode of a scope begins whose value is kept; None where that is not worth while: outside
        of loops, and of fewer operations than ``least`` (or one, if this loop does not change it)."""
        operations = len([op for op, _ in code if op != LOAD and op != PUSH])
        least = 1 if scope[0] < self.within else least
        if code in self._known or not self.within or operations < least or scope[0] > self.within:
            return self._known.get(code)
        if len(self._known) == MOST_KEPT:
            return None
        at = self._known[code] = len(rows.bytecode)
        self._scopes[at] = scope
        rows.bytecode += [(len(self.frame), scope[1]), *code, (STOP, 0)]
        self.frame += [0, 0]
        return at


class StreamTable:
    """The instructions of one stream: where they begin, and the frame that an instance begins with."""

    def __init__(self, first: int, frame: list[int], template: int) -> None:
        self.first = first
        self.frame = frame
        self.template = template
        """Where the frame stands in the lists."""


class CommandTable:
    """A plan's rows among those of others; what is numbered per launch is numbered from 0 here."""

    def __init__(self, plan: pm.Plan, rows: Rows) -> None:
        # Whole tiles have no bounds of their own, but their blocks in caches have as many dimensions.
        rows.dimensions = max([rows.dimensions, *(len(tile.shape) for tile in plan.tiles)])
        self.plan = plan
        self.rows = rows
        self.tiles = {tile.name: number for number, tile in enumerate(plan.tiles)}
        self.channels = {channel.name: number for number, channel in enumerate(plan.channels)}
        self.flags = {flag.name: number for number, flag in enumerate(plan.flags)}
        self.visible = {tile.name for tile in plan.tiles if tile.shared}
        """Tiles that more than one unit may see."""
        self.plain = not plan.levels and not self.visible
        """Whether what is named without an owner is always the unit's own."""
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
        self.stream_base = len(rows.streams)
        self.streams = [self._stream(*each) for each in zip(plan.streams, plan.bodies, strict=True)]
        rows.streams += [(s.first, s.template, len(s.frame)) for s in self.streams]
        self._levels()

    def _levels(self) -> None:
        """Of every level: which stream its instances have, and where they stand in their parent."""
        plan, rows = self.plan, self.rows
        self.stream_of: list[Any] = []
        """Per level, the stream of every instance (counted in the plan; NONE: none)."""
        self.level_lists: list[tuple[int, int, int]] = []
        """Per level: its list of streams (NONE: all have the same), that stream, its list of places."""
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
                streams = rows.raw((found.astype(np.int64) + self.stream_base).tolist())
            if plan.levels and level.slots is None:
                index = np.arange(level.count, dtype=np.int64)
                where = np.broadcast_to(level.place.evaluate({"unit": index}), index.shape)
                places = rows.raw(where.tolist())
            self.level_lists.append((streams, one, places))

    def lanes(self, channels: int) -> int:
        """How many queues of commands an instance needs, if the DMA engine has so many channels: without
        messages it uses one, and every other engine that copies name has one."""
        return DMA + (channels if self.plan.channels else 1) + len(self.movers) - 1

    def message_queue(self, channel: Any) -> Any:
        """The queue of a virtual channel (or of an array of these)."""
        return DMA + channel + (len(self.movers) - 1) * (channel > 0)

    @property
    def engine_names(self) -> list[str]:
        """Of the queues before those of messages."""
        return [*ENGINES, *(f"dma.{name}" if name else "dma" for name in self.movers)]

    # storages

    def _storages(self) -> None:
        plan, rows, count = self.plan, self.rows, 0
        self.base: list[int] = []
        self.memories: list[str] = []
        """The memories that are named, by number."""
        self.movers: list[str] = [""]
        """The DMA engines that copies name, by number."""
        self.queues = {DMA} if self.plan.channels else set[int]()
        """The queues before those of messages that commands use."""
        numbers: dict[str, int] = {}
        described: list[tuple[int, int, pm.Tile | None]] = []

        def memory(name: str, times: int, tile: pm.Tile | None = None) -> None:
            if name not in numbers:
                numbers[name] = len(self.memories)
                self.memories.append(name)
            described.append((numbers[name], times, tile))

        for tile in self.plan.tiles:
            self.base.append(count)
            count += tile.versions
            memory(tile.memory, tile.versions, tile)
        self.first_slot = count
        self.slot_base: list[int] = []
        for channel in self.plan.channels:
            self.slot_base.append(count)
            if channel.members * channel.slots > st.PHASE or count > MOST_QUEUES:
                raise pm.PlanError(f"channel '{channel.name}' has too many slots to be simulated")
            count += channel.members * channel.slots
            if count - self.first_slot > 1 << 26:
                raise pm.PlanError(
                    f"channel '{channel.name}' has {channel.members} members of {channel.slots} slots in "
                    "every unit: too many to be simulated",
                    advice="use fewer slots",
                )
            memory(channel.memory, channel.members * channel.slots)
        self.storages = count
        self.memory_base = rows.memories
        """Every level has rows of its own for all storages."""
        owners = {tile.name: self._owners(tile) for tile in plan.tiles}
        for name, own in self.levels.items():
            for number, times, placed in described:
                seen = (own, 1, NONE, NONE, 0)
                if placed is not None:
                    level = self.levels[plan.level(placed.level).name]
                    seen = (level, plan.per(name, placed.level) or 0, *owners[placed.name])
                rows.memory_of.append(((number, 0, *seen, NONE), times))
        rows.memories += len(self.levels) * count
        over: dict[str, str] = aliases(self.plan)
        self.alias_base = NONE
        if over:
            self.alias_base = len(rows.aliases)
            together: dict[str, list[str]] = {}
            for name, first in over.items():
                together.setdefault(first, []).append(name)
            lists = [NONE] * count
            for names in together.values():
                numbered = [
                    (self.base[self.tiles[n]] + v, n)
                    for n in names
                    for v in range(self.plan.tile(n).versions)
                ]
                for number, name in numbered:
                    lists[number] = rows.list([other for other, tile in numbered if tile != name])
            rows.aliases += lists
        self.over = over

    def _owners(self, tile: pm.Tile) -> tuple[int, int, int]:
        """Of a tile with sharers: lists of the owner of every unit, and of the first unit of every owner."""
        if not tile.shared:
            return NONE, NONE, 0
        count = self.plan.instances(tile.level)
        units = np.arange(count, dtype=np.int64)
        owners = np.broadcast_to(tile.owner.evaluate({"unit": units}), units.shape)
        first = np.full(max(self.plan.owners(tile), int(owners.max()) + 1), NONE, dtype=np.int64)
        first[owners[::-1][owners[::-1] >= 0]] = units[::-1][owners[::-1] >= 0]
        return self.rows.raw(owners.tolist()), self.rows.raw(first.tolist()), len(first)

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
        """Meetings are numbered over all groups and keys; every unit has a list entry per group."""
        self.members: list[tuple[int, ...]] = []
        self.meeting_groups: list[str] = []
        self.group_lists: dict[str, int] = {}
        for group in self.plan.groups:
            key = constant(group.key)
            if key is not None and key >= 0:  # all units meet
                count, number = self.plan.instances(group.level), len(self.members)
                self.members.append(tuple(range(count)))
                self.meeting_groups.append(group.name)
                self.group_lists[group.name] = self.rows.raw([number] * count)
                continue
            units = np.arange(self.plan.instances(group.level), dtype=np.int64)
            keys = np.broadcast_to(group.key.evaluate({"unit": units}), units.shape)
            found, inverse, sizes = np.unique(keys, return_inverse=True, return_counts=True)
            parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(sizes)[:-1])
            numbers = np.full(len(found), NONE, dtype=np.int64)
            for i, key in enumerate(found.tolist()):
                if key >= 0:
                    numbers[i] = len(self.members)
                    self.members.append(tuple(parts[i].tolist()))
                    self.meeting_groups.append(group.name)
            self.group_lists[group.name] = self.rows.raw(numbers[inverse].tolist())

    # streams

    def _stream(self, stream: pm.Stream, every: tuple[Any, ...]) -> StreamTable:
        first = len(self.rows.code)
        compiler = _StreamCompiler(self, stream, every)
        return StreamTable(first, compiler.frame, self.rows.raw(compiler.frame))


@cached_in_owner
def tabulated(plan: pm.Plan) -> CommandTable:
    """The rows of a plan alone."""
    table = CommandTable(plan, Rows())
    table.rows.made = {name: np.asarray(getattr(table.rows, name), dtype=np.int64) for name in TABLES}
    return table


class _StreamCompiler:
    def __init__(self, plan: CommandTable, stream: pm.Stream, every: tuple[Any, ...]) -> None:
        self.plan = plan
        self.level = stream.level
        self.rows = plan.rows
        self.frame = [0]
        self.kept = Kept(self.frame)
        self.handles: list[int] = []
        self.versions: dict[str, int] = {}
        self.written = self._written(every)
        self.tells = any(isinstance(s, (pm.Send, pm.Signal, pm.Collective)) for s in every)
        """Whether something waits for the accesses that others see."""
        self.tiles = self._tiles(every)
        self.limits: dict[int, tuple[str, ...]] = {}
        """By loop, the engines that all which may follow one of its rounds waits for."""
        self._limit(stream.body, ())
        ints, names = {"unit": 0}, dict[str, int]()
        self.block(stream.body, ints, names)
        self.emit(None, End, ended=self.rows.list(self.handles))

    def _written(self, every: tuple[Any, ...]) -> set[str]:
        """Declared tiles that the stream may write: only their accesses can conflict."""
        declared = self.plan.tiles
        written = {w.tile for s in every if (w := write_of(s)) is not None}
        if written - set(declared):
            # Something is written through a handle: whatever was captured by one may be meant.
            for s in every:
                if isinstance(s, pm.Loop):
                    written |= {n for c in s.carries if isinstance(c, pm.CarryTile) for n in (c.init, c.next)}
                if isinstance(s, pm.If):
                    written |= {
                        n for m in s.merges if isinstance(m, pm.MergeTile) for n in (m.then, m.orelse)
                    }
        over = self.plan.over
        groups = {over[name] for name in written if name in over}
        return written | {name for name, first in over.items() if first in groups}

    def _tiles(self, every: tuple[Any, ...]) -> int:
        """Where the rows of the declared tiles begin; each stream has its own, with its version counters."""
        fresh = {w.tile for s in every if getattr(s, "fresh", False) and (w := write_of(s)) is not None}
        first = len(self.rows.tiles)
        for tile, base in zip(self.plan.plan.tiles, self.plan.base, strict=True):
            slot = NONE
            if tile.versions > 1 and tile.name in fresh:
                slot = self.versions[tile.name] = self.place(0)
            self.rows.tiles.append([base, tile.versions, slot])
        return first

    def place(self, value: int) -> int:
        self.frame.append(value)
        return len(self.frame) - 1

    def handle(self, name: str, names: dict[str, int]) -> int:
        """The frame's place of a handle; a new one if the name has none here."""
        if name not in names:
            names[name] = self.place(NONE)
            self.handles.append(names[name])
        return names[name]

    def emit(self, statement: Any, kind: type[Instruction], **operands: int) -> int:
        return self.rows.instruction(statement, kind, **operands)

    def value(self, node: Expr, ints: dict[str, int]) -> int:
        return self.rows.expression(node, ints, self.kept)

    def region(self, region: pm.Region, ints: dict[str, int], names: dict[str, int]) -> int:
        rows, plan = self.rows, self.plan
        bounds = [self.value(e, ints) for pair in zip(region.start, region.shape, strict=True) for e in pair]
        rows.dimensions = max(rows.dimensions, len(region.start))
        owner = NONE if region.at is None else self.value(region.at, ints)
        visible, own = int(owner != NONE), int(plan.plain)
        if region.tile in names:
            mode, what, tracked = st.HANDLE, names[region.tile], 1
        else:
            mode, what = st.DECLARED, self.tiles + plan.tiles[region.tile]
            tile = plan.plan.tiles[plan.tiles[region.tile]]
            tracked = int(region.tile in self.written)
            if region.tile in plan.visible:
                visible = 1
            tracked &= int(tile.elements > 0)
            own = int(not tile.shared and tile.level == self.level)
        visible &= int(self.tells)
        rows.regions.append(
            RegionRow.row(
                mode=mode, tile=what, dimensions=len(region.start), bounds=rows.raw(bounds), owner=owner,
                visible=visible, tracked=tracked, own=own,
            )
        )  # fmt: skip
        return len(rows.regions) - 1

    # statements

    def block(self, body: Iterable[Any], ints: dict[str, int], names: dict[str, int]) -> None:
        for statement in body:
            getattr(self, "on_" + type(statement).__name__.lower())(statement, ints, names)

    def queue(self, engine: str) -> int:
        kind, _, by = engine.partition(".")
        if kind == "dma" and by not in self.plan.movers:
            self.plan.movers.append(by)
        found = DMA + self.plan.movers.index(by) if kind == "dma" else ENGINES.index(kind)
        self.plan.queues.add(found)
        return found

    def _limit(self, body: tuple[Any, ...], rest: tuple[Any, ...]) -> None:
        """Find the loops after whose rounds an instance may stop running ahead; ``rest`` may follow."""
        for i, s in enumerate(body):
            follows = (*body[i + 1 :], *rest)
            if isinstance(s, pm.Loop):
                follows = (*s.body, *follows)
                engines = self._engines_ahead(s.body, follows)
                if engines:
                    self.limits[id(s)] = engines
            if isinstance(s, (pm.Loop, pm.If)):
                self._limit(s.body, follows)
                self._limit(getattr(s, "orelse", ()), follows)

    def _engines_ahead(self, body: tuple[Any, ...], follows: tuple[Any, ...]) -> tuple[str, ...]:
        """Engines of a loop's body such that all that may follow comes after the last command on one of them:
        it is on one of them, or touches what that command writes, or waits for what others see of it."""
        last = {engine_of(s): s for s in body if isinstance(s, pm.Compute)}
        tiles = {t.name for t in self.plan.plan.tiles if t.versions == 1}
        written = {s.write.tile for s in last.values() if not s.write.start and s.write.at is None} & tiles
        seen = any(
            r.at is not None or r.tile in self.plan.visible for s in last.values() for r in regions_of(s)
        )
        for s in pm.statements(follows):
            if isinstance(s, pm.Compute):
                touched = [r for r in regions_of(s) if r.tile in written and r.at is None]
                if engine_of(s) in last or any(all(constant(e) for e in r.shape) for r in touched):
                    continue
            if not (isinstance(s, (pm.Loop, pm.If, pm.Free)) or (isinstance(s, pm.Signal) and seen)):
                return ()
        return tuple(last)

    def begun(self, statement: Any) -> int:
        """The counter of the version that a command begins."""
        write = write_of(statement) if statement.fresh else None
        return NONE if write is None else self.versions.get(write.tile, NONE)

    def on_compute(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        regions = [self.region(r, ints, names) for r in (*s.reads, s.write)]
        self.rows.accesses = max(self.rows.accesses, len(regions))
        engine = self.queue(engine_of(s))
        operands = {
            "engine": engine,
            "flops": self.value(s.work.flops, ints),
            "nbytes": self.value(s.work.bytes, ints),
            "regions": self.rows.list(regions),
            "version": self.begun(s),
        }
        if s.engine == "dma":
            self.emit(s, Copy, **operands, mover=engine - DMA)
        else:
            self.emit(s, Work, **operands, straggles=0, flow=self.plan.actors)

    def on_send(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        to, member, nbytes = (self.value(e, ints) for e in (s.to, s.member, s.work.bytes))
        channel, read = self.plan.channels[s.channel], self.region(s.read, ints, names)
        per = self.per("channels", s.channel)
        self.emit(s, Send, channel=channel, per=per, to=to, member=member, region=read, nbytes=nbytes)

    def per(self, kind: str, name: str) -> int:
        """Instances of the stream's level in one of the level of a channel or flag."""
        number = getattr(self.plan, kind)[name]
        return self.plan.plan.per(self.level, getattr(self.plan.plan, kind)[number].level) or 1

    def _received(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> dict[str, int]:
        """The operands that both ways to receive have."""
        return {
            "channel": self.plan.channels[s.channel],
            "per": self.per("channels", s.channel),
            "into": self.region(s.into, ints, names) if s.into is not None else NONE,
            "handle": self.handle(s.name, names) if s.into is None else NONE,
            "nbytes": self.value(s.work.bytes, ints),
            "version": self.begun(s),
        }

    def on_receive(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        member = self.value(s.member, ints)
        self.emit(s, Receive, **self._received(s, ints, names), member=member)

    def on_receiveany(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        chosen = ints[s.chosen] = self.place(0)
        operands = self._received(s, ints, names)
        self.emit(s, ReceiveAny, **operands, members=self.rows.list(s.members), chosen=chosen)

    def on_readscalar(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        region = self.region(s.read, ints, names)
        name = ints.get(s.name)
        if name is None:
            name = ints[s.name] = self.place(0)
        self.emit(s, ReadScalar, region=region, place=name, times=self._count(s.name))

    def _count(self, name: str) -> int:
        """The frame's place that counts how often a name was read."""
        key = f"\0{name}"
        if key not in self.versions:
            self.versions[key] = self.place(0)
        return self.versions[key]

    def on_signal(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        to, member, amount = (self.value(e, ints) for e in (s.to, s.member, s.amount))
        self.emit(s, Signal, flag=self.plan.flags[s.flag], to=to, member=member, amount=amount)

    def on_wait(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        value, member = self.value(s.value, ints), self.value(s.member, ints)
        flag, per = self.plan.flags[s.flag], self.per("flags", s.flag)
        self.emit(s, Wait, flag=flag, value=value, member=member, per=per)

    def on_collective(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        write = write_of(s)
        reads = [self.region(r, ints, names) for r in reads_of(s)]
        writes = [self.region(write, ints, names)] if write is not None else []
        self.rows.accesses = max(self.rows.accesses, len(reads) + len(writes))
        regions = self.rows.raw([len(reads), len(writes), *reads, *writes])
        meeting, nbytes = self.plan.group_lists[s.group], self.value(s.work.bytes, ints)
        self.emit(s, JoinRendezvous, rendezvous=meeting, regions=regions, nbytes=nbytes)

    def on_free(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        self.emit(s, Free, ended=self.rows.list(names[n] for n in s.names if n in names))

    # control flow

    def moves(self, pairs: Iterable[tuple[int, str]], names: dict[str, int]) -> int:
        """Names to bind: (place, how the source is meant, source) of each, their number first."""
        flat: list[int] = []
        for place, source in pairs:
            if source in names:
                flat += [place, st.HANDLE, names[source]]
            else:
                flat += [place, st.DECLARED, self.tiles + self.plan.tiles[source]]
        return self.rows.raw([len(flat) // 3, *flat]) if flat else 0

    def integers(self, pairs: Iterable[tuple[int, Expr]], ints: dict[str, int]) -> int:
        flat = [n for place, node in pairs for n in (place, self.value(node, ints))]
        return self.rows.raw([len(flat) // 2, *flat]) if flat else 0

    def ended(self, inner: dict[str, int], outer: dict[str, int]) -> int:
        return self.rows.list(place for name, place in inner.items() if name not in outer)

    def on_loop(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        tiles = [c for c in s.carries if isinstance(c, pm.CarryTile)]
        counted = [c for c in s.carries if isinstance(c, pm.CarryInt)]
        sources = dict(names)
        bound = [(self.handle(c.name, names), c.init) for c in tiles]
        moves = self.moves(bound, sources)
        numbers = [(c, self.place(0)) for c in counted]
        initial = self.integers([(place, c.init) for c, place in numbers], ints)
        start, stop, step = (self.value(e, ints) for e in (s.start, s.stop, s.step))
        ints.update({c.name: place for c, place in numbers})
        index = self.place(0)
        self.place(0), self.place(1)
        self.kept.loops[index] = (self.kept.within + 1, self.place(0))
        frees = self.rows.list(names[n] for n in s.frees if n in names)
        self.emit(
            s, LoopEnter, index=index, start=start, stop=stop, step=step, bindings=moves, integers=initial,
            ended=frees,
        )  # fmt: skip
        test = self.emit(s, LoopTest, index=index)
        inner_ints, inner_names = {**ints, s.index: index}, dict(names)
        self.kept.within += 1
        self.block(s.body, inner_ints, inner_names)
        again = self.moves([(names[c.name], c.next) for c in tiles], inner_names)
        steps = self.integers([(place, c.next) for c, place in numbers], inner_ints)
        self.kept.within -= 1
        queues = self.rows.list(self.queue(kind) for kind in self.limits.get(id(s), ())) or NONE
        ended = self.ended(inner_names, names)
        self.emit(
            s, LoopAgain, index=index, test=test, bindings=again, integers=steps, ended=ended, engines=queues
        )
        self.rows.code[test][LoopTest.exit] = len(self.rows.code)

    def on_if(self, s: Any, ints: dict[str, int], names: dict[str, int]) -> None:
        branch = self.emit(s, Branch, condition=self.value(s.condition, ints))
        tiles = [m for m in s.merges if isinstance(m, pm.MergeTile)]
        counted = [m for m in s.merges if isinstance(m, pm.MergeInt)]
        before = dict(names)
        places = [self.handle(m.name, names) for m in tiles]
        numbers = {m.name: self.place(0) for m in counted}
        for side in ("then", "orelse"):
            inner_ints, inner_names = dict(ints), dict(before)
            self.block(s.body if side == "then" else s.orelse, inner_ints, inner_names)
            moves = self.moves(
                [(p, getattr(m, side)) for p, m in zip(places, tiles, strict=True)], inner_names
            )
            merged = self.integers([(numbers[m.name], getattr(m, side)) for m in counted], inner_ints)
            ended = self.ended(inner_names, before)
            self.emit(s, Merge, bindings=moves, integers=merged, ended=ended)
            if side == "then":
                jump = self.emit(s, Jump)
                self.rows.code[branch][Branch.orelse] = len(self.rows.code)
        self.rows.code[jump][Jump.target] = len(self.rows.code)
        ints.update(numbers)
