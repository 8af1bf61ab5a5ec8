"""Rules for copies: between memories, puts and gets, and messages copied out of their slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim.lowering import Lowering, Made, bytes_moved, columns, transfer_times
from megatile.sim.program import COPY, RUN, TAKE, at, column
from megatile.sim.rows import Access, Row


def copy(low: Lowering, row: Row) -> Made:
    source = row.accesses[0] if len(row.accesses) > 1 else row.accesses[-1]
    return copies(low, row, source, "copy")


def copies(low: Lowering, row: Row, source: Access, kind: str) -> Made:
    times = _plain_copies(low, row, source)
    if times is None:
        contended = _contended_copies(low, row, source) if kind == "copy" else None
        return _general_copies(low, row, source, kind) if contended is None else contended
    engine = low.program.engine_names.index("dma.0")
    blocks = columns(low, low.numbers(row))
    if kind == "copy":
        made: list[Any] = [
            (RUN, (engine, busy, latency, row), marks[:-1], marks[-1:])
            for (busy, latency), marks in zip(times, zip(*blocks, strict=True), strict=True)
        ]
    else:
        numbers = column(row.number, low.size)
        each = zip(_takes(low, row, engine, times), numbers, blocks[-1], strict=True)
        made = [info and (TAKE, info, n, mark, row) for info, n, mark in each]
    return low.emit(row, made)


def _takes(low: Lowering, row: Row, engine: int, times: list[tuple[int, int]]) -> list[Any]:
    """(queue, engine, busy, latency, credit time, link) per unit for messages that are copied out."""
    links = low.program.links(row, low.size)
    known = low.infos.get(id(row.statement))
    if known is not None and known[0] is links and known[1] is times:
        return known[2]
    infos = [
        link and (link.queue, engine, busy, latency, link.credit_ps, link)
        for link, (busy, latency) in zip(links, times, strict=True)
    ]
    low.infos[id(row.statement)] = (links, times, infos)
    return infos


def _contended_copies(low: Lowering, row: Row, source: Access) -> Made | None:
    """Copies of a unit's own blocks over ways that others use too; None if they are not as simple as that."""
    varies = (source.storage, row.accesses[-1].storage, row.nbytes)
    if any(isinstance(v, np.ndarray) for v in varies) or not low.plain(row) or not row.nbytes:
        return None
    if low.machine.faults.jitter is not None or low.engine("dma", low.units[0])[1] is not None:
        return None
    key = (id(row.statement), source.storage, row.accesses[-1].storage, row.nbytes)
    infos = low.contended.get(key)
    if infos is None:
        engine, first = low.program.engine_names.index("dma.0"), low.program.queues
        paths = [low.program.copy_path(u, source, row.accesses[-1], i) for i, u in enumerate(low.units)]
        if any(path.cuts(row.nbytes) for path in paths):
            return None
        each = zip(low.units, paths, strict=True)
        infos = low.contended[key] = [(engine, path, row.nbytes, first + u) for u, path in each]
    numbers = low.program.copies
    active = range(low.size) if row.mask is None else low.active(row)
    blocks = low.numbers(row)
    if any(isinstance(b, list) for b in blocks):
        marks = [(m[:-1], m[-1:]) for m in zip(*columns(low, blocks), strict=True)]
    else:
        marks = [(tuple(blocks[:-1]), tuple(blocks[-1:]))] * low.size
    made: Made = [None] * low.size
    for i in active:
        unit, (reads, writes) = low.units[i], marks[i]
        made[i] = (COPY, infos[i], numbers[unit], reads, writes, row)
        numbers[unit] += 1
    return made


def _plain_copies(low: Lowering, row: Row, source: Access) -> list[tuple[int, int]] | None:
    """(busy, latency) per unit where all copies of a row are uncontended and alike; else None."""
    target, program = row.accesses[-1], low.program
    varies = (source.storage, target.storage, row.nbytes)
    if any(isinstance(v, np.ndarray) for v in varies) or not low.plain(row) or program.everything_shared:
        return None
    if low.machine.faults.jitter is not None or not row.nbytes:
        return None
    memories = program.storages.memory(source.storage), program.storages.memory(target.storage)
    key = (id(row.statement), memories, row.nbytes)
    if key not in low.copies:
        low.copies[key] = _copy_times(low, row, source)
    return low.copies[key]


def _copy_times(low: Lowering, row: Row, source: Access) -> list[tuple[int, int]] | None:
    times = []
    for i, unit in enumerate(low.units):
        path = low.program.copy_path(unit, source, row.accesses[-1], i)
        if low.program.contended(path) or low.engine("dma", unit)[1] is not None:
            return None
        times.append(transfer_times(path, row.nbytes))
    return times


def _general_copies(low: Lowering, row: Row, source: Access, kind: str) -> Made:
    plain = low.plain(row)
    links = low.program.links(row, low.size) if kind == "receive" else None

    def make(i: int) -> tuple[Any, ...]:
        unit = low.units[i]
        path = low.program.copy_path(unit, source, row.accesses[-1], i)
        nbytes = bytes_moved(row, i)
        number = low.program.copies[unit]
        low.program.copies[unit] += 1
        engine, resource = low.engine("dma", unit)
        flow = low.program.queues + unit
        delay = low.machine.faults.delay_ps(flow, number, path.occupied_ps(nbytes) + path.latency_ps)
        busy = path.startup_ps + delay + path.held_ps(nbytes)
        if kind == "copy" and plain and resource is None and not low.program.contended(path):
            reads = tuple(block[2] for block in low.blocks(row, False, i))
            writes = tuple(block[2] for block in low.blocks(row, True, i))
            rest = path.occupied_ps(nbytes) - path.held_ps(nbytes) + path.latency_ps
            return RUN, (engine, busy, rest, row), reads, writes
        made = low.general(
            kind, row, i, engine=engine, busy_ps=busy, latency_ps=path.latency_ps, path=path,
            nbytes=nbytes, flow=flow, number=number, resource=resource, delay_ps=delay,
        )  # fmt: skip
        if links is not None:
            made[1].link, made[1].key = links[i], at(row.number, i)
            made[1].slot = int(low.program.regions.whole(at(row.slot, i)))
        return made

    return low.each(row, make)
