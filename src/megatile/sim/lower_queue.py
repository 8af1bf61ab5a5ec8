"""Rules for queues: messages sent, received and released."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim.lower_copy import copies
from megatile.sim.lowering import Lowering, Made, bytes_moved, transfer_times
from megatile.sim.program import GENERAL, RECEIVE, RELEASE, SEND, SHIP, Operation, at, column
from megatile.sim.rows import Row


def send(low: Lowering, row: Row, ship: bool = False) -> Made:
    """Sends; those over a contended way as SHIP if times are not recorded (``ship``)."""
    program = low.program
    links = program.links(row, low.size)
    fast = (
        low.plain(row)
        and not program.orders_shared
        and not program.everything_shared
        and low.machine.faults.jitter is None
        and not isinstance(row.nbytes, np.ndarray)
    )
    infos = _send_infos(low, row, links, ship) if fast else None
    if infos is None:
        return _general_sends(low, row, links)
    blocks = low.numbers(row)[0]
    numbers = row.number
    if not isinstance(blocks, list):
        blocks = [blocks] * low.size
    each = zip(infos, column(numbers, low.size), blocks, strict=True)
    return low.emit(row, [info and (info[0], info[1], n, b, row) for info, n, b in each])


def _send_infos(low: Lowering, row: Row, links: list[Any], ship: bool) -> list[Any] | None:
    """SEND or SHIP and what goes with it, per unit; None if that does not do for all."""
    size = bytes_moved(row, 0)
    memory = _memory(low, row.accesses[0].storage)
    if memory is None:
        return None
    key = (id(row.statement), id(links), size, memory)
    known = low.sends.get(key)
    if known is not None and known[0] is links:
        return known[1]
    ways = low.ways.setdefault((size, memory, ship), {None: None})
    infos: list[Any] | None = []
    for link in links:
        queue = link and link.queue
        if queue not in ways:
            ways[queue] = _way(low, link, size, memory, ship)
        if queue is not None and ways[queue] is None:
            infos = None
            break
        infos.append(ways[queue])  # type: ignore[union-attr]
    if row.mask is None:
        low.sends[key] = (links, infos)  # type: ignore[assignment]
    return infos


def _way(low: Lowering, link: Any, size: int, memory: str, ship: bool) -> tuple[int, Any] | None:
    """How messages of that size go through a queue; None if only an `Operation` can say it."""
    path = low.program.send_path(link, memory)
    contended = low.program.contended(path)
    if low.engine("dma", link.sender)[1] is not None or (contended and not ship):
        return None
    first = (path, 0) if contended else transfer_times(path, size)
    return SHIP if contended else SEND, (link.engine, link.queue, link.channel.slots, *first, link, size)


def _memory(low: Lowering, storage: Any) -> str | None:
    """The memory that all units send from; None if they differ in that."""
    if not isinstance(storage, np.ndarray):
        return low.program.storages.memory(storage)
    memories = {low.program.storages.memory(s) for s in set(storage.tolist())}
    return memories.pop() if len(memories) == 1 else None


def _general_sends(low: Lowering, row: Row, links: list[Any]) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        link = links[i]
        memory = low.program.storages.memory(at(row.accesses[0].storage, i))
        path = low.program.send_path(link, memory)
        nbytes = bytes_moved(row, i)
        number = at(row.number, i)
        resource = low.engine("dma", low.units[i])[1]
        delay = low.machine.faults.delay_ps(link.queue, number, path.occupied_ps(nbytes) + path.latency_ps)
        busy = path.startup_ps + delay + path.held_ps(nbytes)
        return low.general(
            "send", row, i, engine=link.engine, busy_ps=busy, latency_ps=path.latency_ps, path=path,
            nbytes=nbytes, flow=link.queue, number=number, link=link, resource=resource, delay_ps=delay,
        )  # fmt: skip

    return low.each(row, make)


def take_message(low: Lowering, row: Row) -> Made:
    remember(low, row)
    if row.statement.into is not None:
        return copies(low, row, low.slot_access(row), "receive")
    links = low.program.links(row, low.size)
    known = low.infos.get(id(row.statement))
    if known is None or known[0] is not links:
        infos = [link and (link.queue, link) for link in links]
        known = low.infos[id(row.statement)] = (links, None, infos)
    slot, number = low.program.regions.whole(row.slot), row.number
    if not isinstance(slot, np.ndarray) and not isinstance(number, np.ndarray):
        return low.emit(row, [info and (RECEIVE, info, number, slot, row) for info in known[2]])
    each = zip(known[2], column(number, low.size), column(slot, low.size), strict=True)
    return low.emit(row, [info and (RECEIVE, info, n, s, row) for info, n, s in each])


def remember(low: Lowering, row: Row) -> None:
    """Which message lies in which slot, for the release later."""
    if not isinstance(row.slot, np.ndarray) and row.mask is None:
        low.held[row.slot] = row.number
        return
    slots, numbers = column(row.slot, low.size), column(row.number, low.size)
    for i in low.active(row):
        held = low.held.get(slots[i])
        if not isinstance(held, list):
            held = low.held[slots[i]] = column(0 if held is None else held, low.size)
        held[i] = numbers[i]


def release(low: Lowering, row: Row) -> Made:
    if isinstance(row.slot, np.ndarray):
        return _mixed_releases(low, row)
    returns = low.returns.get(row.slot)
    if returns is None:
        returns = low.returns[row.slot] = [_return(low, i, row.slot) for i in range(low.size)]
    held = low.held[row.slot]
    if type(held) is int:
        return low.emit(row, [(RELEASE, info, held, row) for info in returns])
    numbers = held if isinstance(held, list) else column(held, low.size)
    pairs = zip(returns, numbers, strict=True)
    return low.emit(row, [(RELEASE, info, n, row) for info, n in pairs])


def _return(low: Lowering, i: int, storage: int) -> tuple[int, int, int, Any]:
    """(queue, slot block, credit time, link) for the release of a slot by one unit."""
    name, member = low.program.storages.queue_of(storage)
    channel = low.program.channel(name)
    link = low.program.link(channel, low.units[i] * channel.members + member, strict=False)
    return link.queue, int(low.program.regions.whole(storage)), link.credit_ps, link


def _mixed_releases(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        storage = at(row.slot, i)
        held = low.held[storage]
        number = held[i] if isinstance(held, list) else at(held, i)
        return RELEASE, _return(low, i, storage), number, row

    return low.each(row, make)


def receive_any(low: Lowering, row: Row) -> Made:
    channel = low.program.channel(row.statement.channel)
    links = [low.program.link(channel, low.units[0] * channel.members + m) for m in row.statement.members]
    return [(GENERAL, Operation("any", row, low.units[0], link=links, key=row.value))]
