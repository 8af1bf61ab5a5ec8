"""Rows to operations where times are not recorded: fewer and faster ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.sim.lower import operations
from megatile.sim.lower_compute import busy_ps
from megatile.sim.lower_fast import meetings, puts, signals, waits
from megatile.sim.lower_loads import loads
from megatile.sim.lower_queue import remember, send
from megatile.sim.lowering import Lowering, Made, columns
from megatile.sim.program import CONSUME
from megatile.sim.rows import Released, Row


def fused(low: Lowering, rows: list[Row]) -> list[Made]:
    """The operations of some rows, with "receive, work on it, release it" made one operation."""
    found: list[Made] = []
    i = 0
    while i < len(rows):
        made = _consume(low, *rows[i : i + 3]) if i + 2 < len(rows) else None
        found.append(_one(low, rows[i]) if made is None else made)
        i += 1 if made is None else 3
    loads(low, found)
    return found


def _one(low: Lowering, row: Row) -> Made:
    statement = row.statement
    if isinstance(statement, pm.Send):
        return send(low, row, ship=True)
    if isinstance(statement, pm.Signal):
        return signals(low, row)
    if isinstance(statement, pm.Wait):
        return waits(low, row)
    if isinstance(statement, pm.Collective):
        made = meetings(low, row)
        return operations(low, row) if made is None else made
    if isinstance(statement, pm.Compute) and statement.engine == "dma":
        made = puts(low, row)
        return operations(low, row) if made is None else made
    return operations(low, row)


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
    if not low.plain(work) or low.machine.engine_resource(run.engine, low.units[0]) is not None:
        return None
    busy = busy_ps(low, work)
    if isinstance(busy, list):
        return None
    remember(low, first)
    numbers = [n for a, n in zip(work.accesses, low.numbers(work), strict=True) if a is not uses[0]]
    sources = zip(*columns(low, numbers[:-1]), strict=True) if len(numbers) > 1 else [()] * low.size
    targets = zip(*columns(low, numbers[-1:]), strict=True)
    each = zip(_consumers(low, first, work, busy, whole), sources, targets, strict=True)
    return [(CONSUME, info, first.number, r, w) for info, r, w in each]


def _consumers(low: Lowering, first: Row, work: Row, busy: int, whole: int) -> list[Any]:
    """(queue, engine, busy, credit time, slot block, link, row) per unit."""
    links = low.program.links(first, low.size)
    key = (id(first.statement), first.slot, busy)
    known = low.consumers.get(key)
    if known is None or known[0] is not links:
        engine = low.program.engine_names.index(work.statement.engine)
        infos = [(k.queue, engine, busy, k.credit_ps, whole, k, first) for k in links]
        known = low.consumers[key] = (links, infos)
    return known[1]
