"""Making operations out of rows: what all rules need.

See `program` for the operations and `lower` for the rules. `Lowering.register` notes which resources a row's
transfers use; after all rows of a plan are registered it is known which resources are shared, and
`lower.operations` makes the tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.sim.program import GENERAL, Operation, Program, at
from megatile.sim.regions import Block
from megatile.sim.rows import Access, Row
from megatile.timing.fabric import Path

Made = list[Any]
"""One operation per unit of the cohort, None for units that take no part."""


class Lowering:
    """Makes the operations of one cohort's rows; ``units`` are the cohort's unit numbers."""

    def __init__(self, program: Program, units: list[int]) -> None:
        self.program = program
        self.machine = program.machine
        self.units = units
        self.size = len(units)
        self.held: dict[int, Any] = {}
        """Slot -> number of the message in it (an int, or one per unit)."""
        self._registered: set[Any] = set()
        self._sent: dict[int, list[Any]] = {}
        """Per send statement the links that are registered already."""
        self._copied: dict[Any, tuple[Any, Any]] = {}
        """Per copy statement and memories the owners whose ways are registered already."""
        self._signalled: dict[int, tuple[Any, Any]] = {}
        self.loads: dict[int, tuple[Any, Any]] = {}
        self.puts: dict[Any, tuple[Any, ...]] = {}
        self.flags: dict[int, tuple[Any, Any, list[Any]]] = {}
        self.sends: dict[Any, tuple[Any, list[Any]]] = {}
        self.ways: dict[Any, dict[Any, Any]] = {}
        """Per size and memory, how messages go through each queue."""
        self.copies: dict[Any, list[tuple[int, int]] | None] = {}
        self.contended: dict[Any, list[Any]] = {}
        self.returns: dict[int, list[Any]] = {}
        self.infos: dict[int, tuple[Any, Any, list[Any]]] = {}
        self.consumers: dict[Any, tuple[Any, list[Any]]] = {}
        self._numbered: tuple[Row | None, list[Any]] = (None, [])

    # which resources are used

    def register(self, row: Row) -> None:
        statement = row.statement
        if isinstance(statement, pm.Send):
            self._register_sends(row)
        elif isinstance(statement, pm.Compute) and statement.engine == "dma":
            self._register_copies(row, row.accesses[0] if len(row.accesses) > 1 else row.accesses[-1])
        elif isinstance(statement, pm.Compute):
            self._register_engine(statement.engine)
        elif isinstance(statement, pm.Receive) and statement.into is not None:
            self._register_copies(row, self.slot_access(row))
        elif isinstance(statement, pm.Signal):
            self._register_signals(row)

    def _register_sends(self, row: Row) -> None:
        links = self.program.links(row, self.size)
        if self._sent.get(id(row.statement)) is links:
            return
        self._sent[id(row.statement)] = links
        for i, link in enumerate(links):
            if link is not None:
                memory = self.program.storages.memory(at(row.accesses[0].storage, i))
                if ("way", link.queue, memory) in self._registered:
                    continue
                self._registered.add(("way", link.queue, memory))
                self.program.use(self.program.send_path(link, memory), ("queue", link.queue))
                if self.machine.engine_resource("dma", link.sender) is not None:
                    self._register_engine("dma")

    def _register_copies(self, row: Row, source: Access) -> None:
        storages, owners = zip(*((a.storage, a.owner) for a in (source, row.accesses[-1])), strict=True)
        if not any(isinstance(s, np.ndarray) for s in storages):
            key = (id(row.statement), *map(self.program.storages.memory, storages))
            if same(self._copied.get(key), owners):
                return
            if row.mask is None:
                self._copied[key] = owners
        for i in self.active(row):
            path = self.program.copy_path(self.units[i], source, row.accesses[-1], i)
            self.program.use(path, ("copy", self.units[i], id(path)))
        self._register_engine("dma")

    def _register_signals(self, row: Row) -> None:
        target = row.to, row.member
        if same(self._signalled.get(id(row.statement)), target):
            return
        if row.mask is None:
            self._signalled[id(row.statement)] = target
        for i in self.active(row):
            flag = (row.statement.flag, at(row.to, i), at(row.member, i))
            self.program.raises(flag, self.units[i])

    def _register_engine(self, kind: str) -> None:
        if ("engine", kind) in self._registered:
            return
        self._registered.add(("engine", kind))
        for unit in self.units:
            key = self.machine.engine_resource(kind, unit)
            if key is not None:
                number = self.machine.fabric.resource(key)
                users = self.program._users
                if users.setdefault(number, unit) != unit:
                    self.program.shared.add(number)

    # helpers of the rules

    def active(self, row: Row) -> Any:
        return range(self.size) if row.mask is None else np.flatnonzero(row.mask).tolist()

    def emit(self, row: Row, made: list[Any]) -> Made:
        if row.mask is None:
            return made
        return [op if on else None for op, on in zip(made, row.mask.tolist(), strict=True)]

    def each(self, row: Row, make: Callable[[int], tuple[Any, ...]]) -> Made:
        """``make(i)`` for every unit that takes part."""
        made: Made = [None] * self.size
        for i in self.active(row):
            made[i] = make(i)
        return made

    def engine(self, kind: str, unit: int) -> tuple[int, int | None]:
        """The engine's place in a unit, and its resource if it is shared."""
        name = "dma.0" if kind == "dma" else kind
        resource = self.machine.engine_resource(kind, unit)
        number = None if resource is None else self.machine.fabric.resource(resource)
        return self.program.engine_names.index(name), number if self.program.is_shared(number) else None

    def numbers(self, row: Row) -> list[Any]:
        """The block numbers of a row's accesses, worked out once per row."""
        if self._numbered[0] is not row:
            self._numbered = (row, [self.program.regions.number(a) for a in row.accesses])
        return self._numbered[1]

    def blocks(self, row: Row, write: bool, i: int) -> tuple[Block, ...]:
        found = []
        for access, number in zip(row.accesses, self.numbers(row), strict=True):
            if access.write == write:
                number = number[i] if isinstance(number, list) else number
                found.append(self.program.block(access, number, at(access.owner, i)))
        return tuple(found)

    def plain(self, row: Row) -> bool:
        """Whether a row touches only what its own unit owns alone."""
        return not any(a.owner is not None or a.shared for a in row.accesses)

    def general(self, kind: str, row: Row, i: int, **fields: Any) -> tuple[int, Operation]:
        operation = Operation(kind, row, self.units[i], **fields)
        if not row.accesses:
            return GENERAL, operation
        operation.reads, operation.writes = self.blocks(row, False, i), self.blocks(row, True, i)
        operation.shared = any(a.shared for a in row.accesses)
        return GENERAL, operation

    def slot_access(self, row: Row) -> Access:
        return Access(row.slot, None, (), False, row.statement.channel)


def same(known: tuple[Any, ...] | None, fields: tuple[Any, ...]) -> bool:
    """Whether these are the very fields that were seen before (arrays of a cohort are not made anew)."""
    return known is not None and all(a is b for a, b in zip(known, fields, strict=False))


def columns(low: Lowering, numbers: list[Any]) -> list[list[int]]:
    return [n if isinstance(n, list) else [n] * low.size for n in numbers]


def bytes_moved(row: Row, i: int) -> int:
    """Bytes that a command says it moves for one unit."""
    return int(at(row.nbytes, i))


def transfer_times(path: Path, nbytes: int) -> tuple[int, int]:
    """How long an uncontended transfer holds its source, and how much later its tail arrives."""
    held = path.held_ps(nbytes)
    return path.startup_ps + held, path.occupied_ps(nbytes) - held + path.latency_ps
