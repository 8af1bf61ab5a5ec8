"""Rows to operations, statement type by statement type (see `program` for the operations).

`Lowering.register` notes which resources a row's transfers use; after all rows of a plan are
registered it is known which resources are shared, and `Lowering.operations` makes the tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.timing.fabric import Path
from megatile.plan.timing.machine import SIGNAL_BYTES
from megatile.sim.program import (
    CONSUME,
    COPY,
    GENERAL,
    RECEIVE,
    RELEASE,
    RUN,
    SEND,
    TAKE,
    Operation,
    Program,
    at,
    column,
)
from megatile.sim.regions import Block
from megatile.sim.rows import Access, Released, Row

Made = list[Any]
"""One operation per unit of the cohort, None for units that take no part."""


class Lowering:
    """Makes the operations of one cohort's rows; ``units`` are the cohort's unit numbers."""

    def __init__(self, program: Program, units: list[int]) -> None:
        self.program = program
        self.machine = program.machine
        self.units = units
        self.size = len(units)
        self._held: dict[int, Any] = {}
        """Slot -> number of the message in it (an int, or one per unit)."""
        self._registered: set[Any] = set()
        self._sent: dict[int, list[Any]] = {}
        """Per send statement the links that are registered already."""
        self._sends: dict[Any, tuple[Any, list[Any]]] = {}
        self._copies: dict[Any, list[tuple[int, int]] | None] = {}
        self._contended: dict[Any, list[Any]] = {}
        self._returns: dict[int, list[Any]] = {}
        self._infos: dict[int, tuple[Any, Any, list[Any]]] = {}
        self._consumers: dict[Any, tuple[Any, list[Any]]] = {}
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
            self._register_copies(row, self._slot_access(row))

    def _register_sends(self, row: Row) -> None:
        links = self.program.links(row, self.size)
        if self._sent.get(id(row.statement)) is links:
            return
        self._sent[id(row.statement)] = links
        for i, link in enumerate(links):
            if link is not None:
                memory = self.program.storages.memory(at(row.accesses[0].storage, i))
                self.program.use(self.program.send_path(link, memory), ("queue", link.queue))
                if self.machine.engine_resource("dma", link.sender) is not None:
                    self._register_engine("dma")

    def _register_copies(self, row: Row, source: Access) -> None:
        key = (id(row.statement), "copy")
        plain = source.owner is None and row.accesses[-1].owner is None
        if plain and key in self._registered:
            return
        if plain and row.mask is None:
            self._registered.add(key)
        for i in self._active(row):
            path = self.program.copy_path(self.units[i], source, row.accesses[-1], i)
            self.program.use(path, ("copy", self.units[i], id(path)))
        self._register_engine("dma")

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

    # operations

    def operations(self, row: Row) -> Made:
        """One operation per unit of the cohort; None for those that take no part."""
        return _RULES[type(row.statement)](self, row)

    def _active(self, row: Row) -> Any:
        return range(self.size) if row.mask is None else np.flatnonzero(row.mask).tolist()

    def _emit(self, row: Row, made: list[Any]) -> Made:
        if row.mask is None:
            return made
        return [op if on else None for op, on in zip(made, row.mask.tolist(), strict=True)]

    def _each(self, row: Row, make: Callable[[int], tuple[Any, ...]]) -> Made:
        """``make(i)`` for every unit that takes part."""
        made: Made = [None] * self.size
        for i in self._active(row):
            made[i] = make(i)
        return made

    def _engine(self, kind: str, unit: int) -> tuple[int, int | None]:
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

    def _blocks(self, row: Row, write: bool, i: int) -> tuple[Block, ...]:
        found = []
        for access, number in zip(row.accesses, self.numbers(row), strict=True):
            if access.write == write:
                number = number[i] if isinstance(number, list) else number
                found.append(self.program.block(access, number, at(access.owner, i)))
        return tuple(found)

    def _plain(self, row: Row) -> bool:
        """Whether a row touches only what its own unit owns alone."""
        return not any(a.owner is not None or a.shared for a in row.accesses)

    def _general(self, kind: str, row: Row, i: int, **fields: Any) -> tuple[int, Operation]:
        operation = Operation(kind, row, self.units[i], **fields)
        operation.reads, operation.writes = self._blocks(row, False, i), self._blocks(row, True, i)
        operation.shared = any(a.shared for a in row.accesses)
        return GENERAL, operation

    def _slot_access(self, row: Row) -> Access:
        return Access(row.slot, None, (), False, row.statement.channel)


def _compute(low: Lowering, row: Row) -> Made:
    if row.statement.engine == "dma":
        return _copy(low, row)
    statement, machine = row.statement, low.machine
    plain = low._plain(row) and low._engine(statement.engine, low.units[0])[1] is None
    if plain and not low.program.is_shared(_resource(low, statement.engine)):
        engine = low.program.engine_names.index(statement.engine)
        busy = _busy(low, row)
        numbers = low.numbers(row)
        reads, writes = numbers[:-1], numbers[-1:]
        if not any(isinstance(x, list) for x in (busy, *reads, *writes)):
            same = (RUN, (engine, busy, 0, row), tuple(reads), tuple(writes))
            return low._emit(row, [same] * low.size)
        sources = zip(*_columns(low, reads), strict=True) if reads else [()] * low.size
        targets = zip(*_columns(low, writes), strict=True)
        if isinstance(busy, list):
            each = zip(busy, sources, targets, strict=True)
            return low._emit(row, [(RUN, (engine, b, 0, row), r, w) for b, r, w in each])
        pairs = zip(sources, targets, strict=True)
        info = (engine, busy, 0, row)
        return low._emit(row, [(RUN, info, r, w) for r, w in pairs])
    return _shared_compute(low, row, machine)


def _columns(low: Lowering, numbers: list[Any]) -> list[list[int]]:
    return [n if isinstance(n, list) else [n] * low.size for n in numbers]


def _resource(low: Lowering, kind: str) -> int | None:
    key = low.machine.engine_resource(kind, low.units[0])
    return None if key is None else low.machine.fabric.resource(key)


def _shared_compute(low: Lowering, row: Row, machine: Any) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        unit = low.units[i]
        engine, resource = low._engine(row.statement.engine, unit)
        busy = machine.compute_ps(row.statement, at(row.flops, i), unit)
        number = low.program.copies[unit]
        low.program.copies[unit] += 1
        flow = low.program.queues + low.program.plan.units + unit
        return low._general(
            "work", row, i, engine=engine, busy_ps=busy, resource=resource, flow=flow, number=number
        )

    return low._each(row, make)


def _busy(low: Lowering, row: Row) -> Any:
    """How long a compute command keeps its engine: one int, or one per unit."""
    machine, statement = low.machine, row.statement
    if isinstance(row.flops, np.ndarray) or machine.faults.straggler:
        flops = column(row.flops, low.size)
        return [machine.compute_ps(statement, f, u) for f, u in zip(flops, low.units, strict=True)]
    return machine.compute_ps(statement, row.flops, low.units[0])


def bytes_moved(low: Lowering, row: Row, i: int) -> int:
    """Bytes that a command moves: what it says, else the size of what it writes (or reads)."""
    said = at(row.nbytes, i)
    if said:
        return int(said)
    access = row.accesses[-1]
    bounds = tuple((at(a, i), at(b, i)) for a, b in access.bounds)
    return low.program.storages.nbytes(at(access.storage, i), bounds)


def _copy(low: Lowering, row: Row) -> Made:
    source = row.accesses[0] if len(row.accesses) > 1 else row.accesses[-1]
    return _copies(low, row, source, "copy")


def _copies(low: Lowering, row: Row, source: Access, kind: str) -> Made:
    times = _plain_copies(low, row, source)
    if times is None:
        contended = _contended_copies(low, row, source) if kind == "copy" else None
        return _general_copies(low, row, source, kind) if contended is None else contended
    engine = low.program.engine_names.index("dma.0")
    blocks = _columns(low, low.numbers(row))
    if kind == "copy":
        made: list[Any] = [
            (RUN, (engine, busy, latency, row), marks[:-1], marks[-1:])
            for (busy, latency), marks in zip(times, zip(*blocks, strict=True), strict=True)
        ]
    else:
        numbers = column(row.number, low.size)
        each = zip(_takes(low, row, engine, times), numbers, blocks[-1], strict=True)
        made = [info and (TAKE, info, n, mark, row) for info, n, mark in each]
    return low._emit(row, made)


def _takes(low: Lowering, row: Row, engine: int, times: list[tuple[int, int]]) -> list[Any]:
    """(queue, engine, busy, latency, credit time, link) per unit for messages that are copied out."""
    links = low.program.links(row, low.size)
    known = low._infos.get(id(row.statement))
    if known is not None and known[0] is links and known[1] is times:
        return known[2]
    infos = [
        link and (link.queue, engine, busy, latency, link.credit_ps, link)
        for link, (busy, latency) in zip(links, times, strict=True)
    ]
    low._infos[id(row.statement)] = (links, times, infos)
    return infos


def _contended_copies(low: Lowering, row: Row, source: Access) -> Made | None:
    """Copies of a unit's own blocks over ways that others use too; None if they are not as simple as that."""
    varies = (source.storage, row.accesses[-1].storage, row.nbytes)
    if any(isinstance(v, np.ndarray) for v in varies) or not low._plain(row) or not row.nbytes:
        return None
    if low.machine.faults.jitter is not None or low._engine("dma", low.units[0])[1] is not None:
        return None
    key = (id(row.statement), source.storage, row.accesses[-1].storage, row.nbytes)
    infos = low._contended.get(key)
    if infos is None:
        engine, first = low.program.engine_names.index("dma.0"), low.program.queues
        paths = [low.program.copy_path(u, source, row.accesses[-1], i) for i, u in enumerate(low.units)]
        if any(path.cuts(row.nbytes) for path in paths):
            return None
        each = zip(low.units, paths, strict=True)
        infos = low._contended[key] = [(engine, path, row.nbytes, first + u) for u, path in each]
    numbers = low.program.copies
    active = range(low.size) if row.mask is None else low._active(row)
    blocks = list(zip(*_columns(low, low.numbers(row)), strict=True))
    made: Made = [None] * low.size
    for i in active:
        unit, marks = low.units[i], blocks[i]
        made[i] = (COPY, infos[i], numbers[unit], marks[:-1], marks[-1:], row)
        numbers[unit] += 1
    return made


def _plain_copies(low: Lowering, row: Row, source: Access) -> list[tuple[int, int]] | None:
    """(busy, latency) per unit where all copies of a row are uncontended and alike; else None."""
    target, program = row.accesses[-1], low.program
    varies = (source.storage, target.storage, row.nbytes)
    if any(isinstance(v, np.ndarray) for v in varies) or not low._plain(row) or program.everything_shared:
        return None
    if low.machine.faults.jitter is not None or not row.nbytes:
        return None
    memories = program.storages.memory(source.storage), program.storages.memory(target.storage)
    key = (id(row.statement), memories, row.nbytes)
    if key not in low._copies:
        low._copies[key] = _copy_times(low, row, source)
    return low._copies[key]


def transfer_times(path: Path, nbytes: int) -> tuple[int, int]:
    """How long an uncontended transfer holds its source, and how much later its tail arrives."""
    held = path.held_ps(nbytes)
    return path.startup_ps + held, path.occupied_ps(nbytes) - held + path.latency_ps


def _copy_times(low: Lowering, row: Row, source: Access) -> list[tuple[int, int]] | None:
    times = []
    for i, unit in enumerate(low.units):
        path = low.program.copy_path(unit, source, row.accesses[-1], i)
        if low.program.contended(path) or low._engine("dma", unit)[1] is not None:
            return None
        times.append(transfer_times(path, row.nbytes))
    return times


def _general_copies(low: Lowering, row: Row, source: Access, kind: str) -> Made:
    plain = low._plain(row)
    links = low.program.links(row, low.size) if kind == "receive" else None

    def make(i: int) -> tuple[Any, ...]:
        unit = low.units[i]
        path = low.program.copy_path(unit, source, row.accesses[-1], i)
        nbytes = bytes_moved(low, row, i)
        number = low.program.copies[unit]
        low.program.copies[unit] += 1
        engine, resource = low._engine("dma", unit)
        flow = low.program.queues + unit
        delay = low.machine.faults.delay_ps(flow, number, path.occupied_ps(nbytes) + path.latency_ps)
        busy = path.startup_ps + delay + path.held_ps(nbytes)
        if kind == "copy" and plain and resource is None and not low.program.contended(path):
            reads = tuple(block[2] for block in low._blocks(row, False, i))
            writes = tuple(block[2] for block in low._blocks(row, True, i))
            rest = path.occupied_ps(nbytes) - path.held_ps(nbytes) + path.latency_ps
            return RUN, (engine, busy, rest, row), reads, writes
        made = low._general(
            kind, row, i, engine=engine, busy_ps=busy, latency_ps=path.latency_ps, path=path,
            nbytes=nbytes, flow=flow, number=number, resource=resource, delay_ps=delay,
        )  # fmt: skip
        if links is not None:
            made[1].link, made[1].key = links[i], at(row.number, i)
            made[1].slot = int(low.program.regions.whole(at(row.slot, i)))
        return made

    return low._each(row, make)


def _send(low: Lowering, row: Row) -> Made:
    program = low.program
    links = program.links(row, low.size)
    access = row.accesses[0]
    fast = (
        low._plain(row)
        and not program.orders_shared
        and not program.everything_shared
        and low.machine.faults.jitter is None
        and not isinstance(row.nbytes, np.ndarray)
        and not isinstance(access.storage, np.ndarray)
    )
    if not fast:
        return _general_sends(low, row, links)
    infos = _send_infos(low, row, links)
    if infos is None:
        return _general_sends(low, row, links)
    blocks = low.numbers(row)[0]
    numbers = row.number
    if not isinstance(blocks, list):
        blocks = [blocks] * low.size
    if isinstance(numbers, np.ndarray):
        numbers = numbers.tolist()
        made = [info and (SEND, info, n, b, row) for info, n, b in zip(infos, numbers, blocks, strict=True)]
    else:
        made = [info and (SEND, info, numbers, b, row) for info, b in zip(infos, blocks, strict=True)]
    return low._emit(row, made)


def _send_infos(low: Lowering, row: Row, links: list[Any]) -> list[Any] | None:
    """(engine, queue, slots, busy, latency, link) per unit; None if a way is contended."""
    access = row.accesses[0]
    size = bytes_moved(low, row, 0) if not access.bounds or row.nbytes else None
    if size is None:
        return None
    memory = low.program.storages.memory(access.storage)
    key = (id(row.statement), id(links), size, memory)
    known = low._sends.get(key)
    if known is not None and known[0] is links:
        return known[1]
    infos: list[Any] | None = []
    for link in links:
        if link is None:
            infos.append(None)  # type: ignore[union-attr]
            continue
        path = low.program.send_path(link, memory)
        if low.program.contended(path) or low._engine("dma", link.sender)[1] is not None:
            infos = None
            break
        busy, latency = transfer_times(path, size)
        slots = link.channel.slots
        infos.append((link.engine, link.queue, slots, busy, latency, link, size))  # type: ignore[union-attr]
    if row.mask is None:
        low._sends[key] = (links, infos)  # type: ignore[assignment]
    return infos


def _general_sends(low: Lowering, row: Row, links: list[Any]) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        link = links[i]
        memory = low.program.storages.memory(at(row.accesses[0].storage, i))
        path = low.program.send_path(link, memory)
        nbytes = bytes_moved(low, row, i)
        number = at(row.number, i)
        resource = low._engine("dma", low.units[i])[1]
        delay = low.machine.faults.delay_ps(link.queue, number, path.occupied_ps(nbytes) + path.latency_ps)
        busy = path.startup_ps + delay + path.held_ps(nbytes)
        return low._general(
            "send", row, i, engine=link.engine, busy_ps=busy, latency_ps=path.latency_ps, path=path,
            nbytes=nbytes, flow=link.queue, number=number, link=link, resource=resource, delay_ps=delay,
        )  # fmt: skip

    return low._each(row, make)


def take_message(low: Lowering, row: Row) -> Made:
    _remember(low, row)
    if row.statement.into is not None:
        return _copies(low, row, low._slot_access(row), "receive")
    links = low.program.links(row, low.size)
    known = low._infos.get(id(row.statement))
    if known is None or known[0] is not links:
        infos = [link and (link.queue, link) for link in links]
        known = low._infos[id(row.statement)] = (links, None, infos)
    slot, number = low.program.regions.whole(row.slot), row.number
    if not isinstance(slot, np.ndarray) and not isinstance(number, np.ndarray):
        return low._emit(row, [info and (RECEIVE, info, number, slot, row) for info in known[2]])
    each = zip(known[2], column(number, low.size), column(slot, low.size), strict=True)
    return low._emit(row, [info and (RECEIVE, info, n, s, row) for info, n, s in each])


def _remember(low: Lowering, row: Row) -> None:
    """Which message lies in which slot, for the release later."""
    if not isinstance(row.slot, np.ndarray) and row.mask is None:
        low._held[row.slot] = row.number
        return
    slots, numbers = column(row.slot, low.size), column(row.number, low.size)
    for i in low._active(row):
        held = low._held.get(slots[i])
        if not isinstance(held, list):
            held = low._held[slots[i]] = column(0 if held is None else held, low.size)
        held[i] = numbers[i]


def _release(low: Lowering, row: Row) -> Made:
    if isinstance(row.slot, np.ndarray):
        return _mixed_releases(low, row)
    returns = low._returns.get(row.slot)
    if returns is None:
        returns = low._returns[row.slot] = [_return(low, i, row.slot) for i in range(low.size)]
    held = low._held[row.slot]
    if type(held) is int:
        return low._emit(row, [(RELEASE, info, held, row) for info in returns])
    numbers = held if isinstance(held, list) else column(held, low.size)
    pairs = zip(returns, numbers, strict=True)
    return low._emit(row, [(RELEASE, info, n, row) for info, n in pairs])


def _return(low: Lowering, i: int, storage: int) -> tuple[int, int, int, Any]:
    """(queue, slot block, credit time, link) for the release of a slot by one unit."""
    name, member = low.program.storages.queue_of(storage)
    channel = low.program.channel(name)
    link = low.program.link(channel, low.units[i] * channel.members + member, strict=False)
    return link.queue, int(low.program.regions.whole(storage)), link.credit_ps, link


def _mixed_releases(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        storage = at(row.slot, i)
        held = low._held[storage]
        number = held[i] if isinstance(held, list) else at(held, i)
        return RELEASE, _return(low, i, storage), number, row

    return low._each(row, make)


def _receive_any(low: Lowering, row: Row) -> Made:
    channel = low.program.channel(row.statement.channel)
    links = [low.program.link(channel, low.units[0] * channel.members + m) for m in row.statement.members]
    return [(GENERAL, Operation("any", row, low.units[0], link=links, key=row.value))]


def _read(low: Lowering, row: Row) -> Made:
    return low._each(row, lambda i: low._general("read", row, i))


def _signal(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        unit, to = low.units[i], at(row.to, i)
        delay = low.machine.message_ps(unit, to, SIGNAL_BYTES)
        key = (row.statement.flag, to, at(row.member, i))
        return low._general("signal", row, i, key=key, value=at(row.value, i), delay_ps=delay)

    return low._each(row, make)


def _wait(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        key = (row.statement.flag, low.units[i], at(row.member, i))
        return low._general("wait", row, i, key=key, value=at(row.value, i))

    return low._each(row, make)


def _collective(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        group = (row.statement.group, at(row.group, i))
        members = low.program.members[group]
        nbytes = bytes_moved(low, row, i) if row.accesses else 0
        cost = low.machine.collective_ps(row.statement, members, nbytes)
        key = (*group, at(row.number, i))
        return low._general("meet", row, i, key=key, value=len(members), delay_ps=cost, nbytes=nbytes)

    return low._each(row, make)


_RULES: dict[type, Callable[[Lowering, Row], Made]] = {
    pm.Compute: _compute,
    pm.Send: _send,
    pm.Receive: take_message,
    pm.ReceiveAny: _receive_any,
    pm.ReadScalar: _read,
    pm.Signal: _signal,
    pm.Wait: _wait,
    pm.Collective: _collective,
    Released: _release,
}


def fused(low: Lowering, rows: list[Row]) -> Iterator[Made]:
    """The operations of some rows, with "receive, work on it, release it" made one operation."""
    i = 0
    while i < len(rows):
        made = _consume(low, *rows[i : i + 3]) if i + 2 < len(rows) else None
        if made is None:
            yield low.operations(rows[i])
            i += 1
        else:
            yield made
            i += 3


def _consume(low: Lowering, first: Row, work: Row, last: Row) -> Made | None:
    """Three rows as one operation, if they are a message's whole life and all units take part."""
    take, run, program = first.statement, work.statement, low.program
    if not (isinstance(take, pm.Receive) and isinstance(run, pm.Compute)):
        return None
    if not isinstance(last.statement, Released):
        return None
    slot = first.slot
    alike = take.into is None and all(type(x) is int for x in (slot, last.slot, first.number))
    if (
        not alike
        or last.slot != slot
        or run.engine == "dma"
        or any(row.mask is not None for row in (first, work, last))
    ):
        return None
    uses = [a for a in work.accesses if isinstance(a.storage, np.ndarray) or a.storage == slot]
    whole = program.regions.whole(slot)
    if len(uses) != 1 or uses[0].write or program.regions.number(uses[0]) != whole:
        return None
    if not low._plain(work) or low.machine.engine_resource(run.engine, low.units[0]) is not None:
        return None
    busy = _busy(low, work)
    if isinstance(busy, list):
        return None
    _remember(low, first)
    numbers = [n for a, n in zip(work.accesses, low.numbers(work), strict=True) if a is not uses[0]]
    sources = zip(*_columns(low, numbers[:-1]), strict=True) if len(numbers) > 1 else [()] * low.size
    targets = zip(*_columns(low, numbers[-1:]), strict=True)
    each = zip(_consumers(low, first, work, busy, whole), sources, targets, strict=True)
    return [(CONSUME, info, first.number, r, w) for info, r, w in each]


def _consumers(low: Lowering, first: Row, work: Row, busy: int, whole: int) -> list[Any]:
    """(queue, engine, busy, credit time, slot block, link, row) per unit."""
    links = low.program.links(first, low.size)
    key = (id(first.statement), first.slot, busy)
    known = low._consumers.get(key)
    if known is None or known[0] is not links:
        engine = low.program.engine_names.index(work.statement.engine)
        infos = [(k.queue, engine, busy, k.credit_ps, whole, k, first) for k in links]
        known = low._consumers[key] = (links, infos)
    return known[1]
