"""Rows to operations: the table of rules, and what holds up issue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.timing.machine import SIGNAL_BYTES
from megatile.sim.lower_compute import busy_ps, compute
from megatile.sim.lower_queue import receive_any, release, remember, send, take_message
from megatile.sim.lowering import Lowering, Made, bytes_moved, columns
from megatile.sim.program import CONSUME, at
from megatile.sim.rows import Released, Row


def _read(low: Lowering, row: Row) -> Made:
    return low.each(row, lambda i: low.general("read", row, i))


def _signal(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        unit, to = low.units[i], at(row.to, i)
        delay = low.machine.message_ps(unit, to, SIGNAL_BYTES)
        key = (row.statement.flag, to, at(row.member, i))
        return low.general("signal", row, i, key=key, value=at(row.value, i), delay_ps=delay)

    return low.each(row, make)


def _wait(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        key = (row.statement.flag, low.units[i], at(row.member, i))
        return low.general("wait", row, i, key=key, value=at(row.value, i))

    return low.each(row, make)


def _collective(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        group = (row.statement.group, at(row.group, i))
        members = low.program.members[group]
        nbytes = bytes_moved(low, row, i) if row.accesses else 0
        cost = low.machine.collective_ps(row.statement, members, nbytes)
        key = (*group, at(row.number, i))
        return low.general("meet", row, i, key=key, value=len(members), delay_ps=cost, nbytes=nbytes)

    return low.each(row, make)


def fused(low: Lowering, rows: list[Row]) -> Iterator[Made]:
    """The operations of some rows, with "receive, work on it, release it" made one operation."""
    i = 0
    while i < len(rows):
        made = _consume(low, *rows[i : i + 3]) if i + 2 < len(rows) else None
        if made is None:
            yield operations(low, rows[i])
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


_RULES: dict[type, Callable[[Lowering, Row], Made]] = {
    pm.Compute: compute,
    pm.Send: send,
    pm.Receive: take_message,
    pm.ReceiveAny: receive_any,
    pm.ReadScalar: _read,
    pm.Signal: _signal,
    pm.Wait: _wait,
    pm.Collective: _collective,
    Released: release,
}


def operations(low: Lowering, row: Row) -> Made:
    """One operation per unit of the cohort; None for those that take no part."""
    return _RULES[type(row.statement)](low, row)
