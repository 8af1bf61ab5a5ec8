"""Rules for commands on compute engines."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim.lower_copy import copy
from megatile.sim.lowering import Lowering, Made, columns
from megatile.sim.program import RUN, at, column
from megatile.sim.rows import Row


def compute(low: Lowering, row: Row) -> Made:
    if row.statement.engine == "dma":
        return copy(low, row)
    statement, machine = row.statement, low.machine
    plain = low.plain(row) and low.engine(statement.engine, low.units[0])[1] is None
    if plain and not low.program.is_shared(_resource(low, statement.engine)):
        engine = low.program.engine_names.index(statement.engine)
        busy = busy_ps(low, row)
        numbers = low.numbers(row)
        reads, writes = numbers[:-1], numbers[-1:]
        if not any(isinstance(x, list) for x in (busy, *reads, *writes)):
            same = (RUN, (engine, busy, 0, row), tuple(reads), tuple(writes))
            return low.emit(row, [same] * low.size)
        sources = zip(*columns(low, reads), strict=True) if reads else [()] * low.size
        targets = zip(*columns(low, writes), strict=True)
        if isinstance(busy, list):
            each = zip(busy, sources, targets, strict=True)
            return low.emit(row, [(RUN, (engine, b, 0, row), r, w) for b, r, w in each])
        pairs = zip(sources, targets, strict=True)
        info = (engine, busy, 0, row)
        return low.emit(row, [(RUN, info, r, w) for r, w in pairs])
    return _shared_compute(low, row, machine)


def _resource(low: Lowering, kind: str) -> int | None:
    key = low.machine.engine_resource(kind, low.units[0])
    return None if key is None else low.machine.fabric.resource(key)


def _shared_compute(low: Lowering, row: Row, machine: Any) -> Made:
    def make(i: int) -> tuple[Any, ...]:
        unit = low.units[i]
        engine, resource = low.engine(row.statement.engine, unit)
        busy = machine.compute_ps(row.statement, at(row.flops, i), unit)
        number = low.program.copies[unit]
        low.program.copies[unit] += 1
        flow = low.program.queues + low.program.plan.units + unit
        return low.general(
            "work", row, i, engine=engine, busy_ps=busy, resource=resource, flow=flow, number=number
        )

    return low.each(row, make)


def busy_ps(low: Lowering, row: Row) -> Any:
    """How long a compute command keeps its engine: one int, or one per unit."""
    machine, statement = low.machine, row.statement
    if isinstance(row.flops, np.ndarray) or machine.faults.straggler:
        flops = column(row.flops, low.size)
        return [machine.compute_ps(statement, f, u) for f, u in zip(flops, low.units, strict=True)]
    return machine.compute_ps(statement, row.flops, low.units[0])
