"""Rows to operations: the table of rules, and what holds up issue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatile.plan import model as pm
from megatile.sim.lower_compute import compute
from megatile.sim.lower_queue import receive_any, release, send, take_message
from megatile.sim.lowering import Lowering, Made, bytes_moved
from megatile.sim.program import at
from megatile.sim.rows import Released, Row


def _read(low: Lowering, row: Row) -> Made:
    return low.each(row, lambda i: low.general("read", row, i))


def _signal(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        unit, to = low.units[i], at(row.to, i)
        delay = low.machine.signal_ps(unit, to)
        key = (row.statement.flag, to, at(row.member, i))
        return low.general("signal", row, i, key=key, value=at(row.value, i), delay_ps=delay)

    return low.each(row, make)


def _wait(low: Lowering, row: Row) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        key = (row.statement.flag, low.units[i], at(row.member, i))
        return low.general("wait", row, i, key=key, value=at(row.value, i))

    return low.each(row, make)


def _collective(low: Lowering, row: Row) -> Made:
    costs: dict[Any, tuple[Any, int]] = {}

    def make(i: int) -> tuple[Any, ...]:
        group = (row.statement.group, at(row.group, i))
        nbytes = bytes_moved(row, i) if row.accesses else 0
        known = costs.get((group, nbytes))
        if known is None:
            members = low.program.members[group]
            known = costs[group, nbytes] = (
                members,
                low.machine.collective_ps(row.statement, members, nbytes),
            )
        members, cost = known
        key = (*group, at(row.number, i))
        return low.general("meet", row, i, key=key, value=len(members), delay_ps=cost, nbytes=nbytes)

    return low.each(row, make)


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
