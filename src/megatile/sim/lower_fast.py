"""Rules for puts, flags and barriers where times are not recorded; see `program` for the operations.

What repeats from row to row is made once: mostly whole operations, which then all rows share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim.lower import operations
from megatile.sim.lowering import Lowering, Made, same, transfer_times
from megatile.sim.program import MEET, PUT, SIGNAL, WAIT, at, column
from megatile.sim.rows import Row

# puts and gets


def puts(low: Lowering, row: Row) -> Made | None:
    """Copies that touch what others see too, over ways that nobody else uses; None if they are others."""
    source, target = row.accesses[0], row.accesses[-1]
    varies = (source.storage, target.storage, row.nbytes)
    if row.mask is not None or low.plain(row) or any(isinstance(v, np.ndarray) for v in varies):
        return None
    if not row.nbytes or low.machine.faults.jitter is not None:
        return None
    key = (id(row.statement), *varies)
    fields = (source.owner, target.owner)
    known = low.puts.get(key)
    if known is None or not same(known[0], fields):
        known = low.puts[key] = (fields, _put_infos(low, row), None, None)
    infos = known[1]
    if infos is None:
        return None
    blocks = (low.program.regions.marks, low.numbers(row))
    if known[2] != blocks:
        made = [
            (PUT, info, low.blocks(row, False, i), low.blocks(row, True, i)) for i, info in enumerate(infos)
        ]
        known = low.puts[key] = (fields, infos, blocks, made)
    return known[3]


def _put_infos(low: Lowering, row: Row) -> list[Any] | None:
    """(engine, busy, latency, row) per unit; None if a way is contended."""
    infos = []
    for i, unit in enumerate(low.units):
        path = low.program.copy_path(unit, row.accesses[0], row.accesses[-1], i)
        engine, resource = low.engine("dma", unit)
        if resource is not None or low.program.contended(path):
            return None
        infos.append((engine, *transfer_times(path, row.nbytes), row))
    return infos


# flags


def signals(low: Lowering, row: Row) -> Made:
    """Signals; those of flags that several units raise go the general way."""
    fields = (row.to, row.member)
    known = low.flags.get(id(row.statement))
    if known is None or not same(known[:2], fields):
        infos: list[Any] = [None] * low.size
        for i in low.active(row):
            unit, to = low.units[i], at(row.to, i)
            number = low.program.flag((row.statement.flag, to, at(row.member, i)))
            if number is not None:
                infos[i] = (number, low.machine.signal_ps(unit, to))
        known = (*fields, infos)
        if row.mask is None:
            low.flags[id(row.statement)] = known
    each = zip(known[2], column(row.value, low.size), strict=True)
    return _rest(low, row, [info and (SIGNAL, info, amount) for info, amount in each])


def waits(low: Lowering, row: Row) -> Made:
    """Waits; those for flags that several units raise go the general way."""
    known = low.flags.get(id(row.statement))
    if known is None or not same(known[1:2], (row.member,)):
        name = row.statement.flag
        numbers: list[Any] = [None] * low.size
        for i in low.active(row):
            numbers[i] = low.program.flag((name, low.units[i], at(row.member, i)))
        known = (None, row.member, numbers)
        if row.mask is None:
            low.flags[id(row.statement)] = known
    each = zip(known[2], column(row.value, low.size), strict=True)
    return _rest(low, row, [None if n is None else (WAIT, n, value, row) for n, value in each])


def _rest(low: Lowering, row: Row, made: list[Any]) -> Made:
    """What was not made the fast way is made the general way."""
    if None not in made:
        return low.emit(row, made)
    slow = operations(low, row)
    return [b if a is None else a for a, b in zip(low.emit(row, made), slow, strict=True)]


# barriers


def meetings(low: Lowering, row: Row) -> Made | None:
    """Barriers: one operation for all units of a group; None for collectives that move data."""
    if row.accesses:
        return None
    made: dict[Any, tuple[Any, ...]] = {}
    groups, numbers = column(row.group, low.size), column(row.number, low.size)
    for key in set(zip(groups, numbers, strict=True)):
        members = low.program.members.get((row.statement.group, key[0]))
        if members is not None:
            delay = low.machine.collective_ps(row.statement, members, 0)
            made[key] = (MEET, (row.statement.group, *key), len(members), delay, row)
    return low.emit(row, [made.get(key) for key in zip(groups, numbers, strict=True)])
