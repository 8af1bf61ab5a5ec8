"""Choosing and running an evaluator for a plan on a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.sim.array_sends import LinksShared
from megatile.sim.arrays import Arrays, Lane, check_regular
from megatile.sim.bucket import Bucket
from megatile.sim.cohort import Cohort
from megatile.sim.follow import walk
from megatile.sim.lower import operations
from megatile.sim.lower_fused import fused
from megatile.sim.lower_queue import take_message
from megatile.sim.lowering import Lowering
from megatile.sim.program import Program
from megatile.sim.rows import Row, Walk
from megatile.sim.runahead import RunAhead
from megatile.sim.times import Times
from megatile.sim.unit import UnitState
from megatile.timing.resources import Resources
from megatile.timing.view import TimingError

Scalars = Callable[[pm.ReadScalar, Any, Any], Any]
MAX_OPERATIONS = 30_000_000
"""Beyond this many operations, following every unit needs more memory than a workstation has."""


def has_any(plan: pm.Plan) -> bool:
    """Whether a unit's course may depend on which message comes first."""
    return any(isinstance(s, pm.ReceiveAny) for st in plan.streams for s in pm.statements(st.body))


def cohorts(program: Program, scalars: Scalars) -> list[tuple[list[int], Cohort]]:
    """One cohort per stream."""
    found = []
    for stream in program.plan.streams:
        units = list(stream.unit_numbers())
        if units:
            number: Any = np.array(units, dtype=np.int64) if len(units) > 1 else units[0]
            found.append((units, Cohort(program.plan, program.storages, number, scalars)))
            program.cohorts.append(found[-1][1])
    return found


def run_ahead(machine: Resources, scalars: Scalars, *, record: bool) -> tuple[Program, Times]:
    """The general evaluator, with all rows made beforehand where the course is fixed."""
    lazy = has_any(machine.plan)
    program = Program(machine, everything_shared=lazy)
    engines = len(program.engine_names)
    states = [UnitState(u, machine.start_ps(u), engines, []) for u in range(machine.plan.units)]
    if lazy:
        for state in states:
            state.more = follow(program, state.unit, scalars)
    else:
        fill(program, [s.operations for s in states], scalars, record)
    return program, RunAhead(program, states, record=record).run()


def bucket(machine: Resources, scalars: Scalars) -> tuple[Program, Times]:
    """The oracle: every unit is followed one by one, every resource is a server."""
    program = Program(machine, everything_shared=True)
    engines = len(program.engine_names)
    states = [UnitState(u, machine.start_ps(u), engines, []) for u in range(machine.plan.units)]
    for state in states:
        state.more = follow(program, state.unit, scalars)
    return program, Bucket(program, states).run()


def fill(program: Program, courses: list[list[Any]], scalars: Scalars, record: bool = True) -> None:
    """Make the operations of every unit of a plan whose course is fixed; one per row if ``record``."""
    followed: list[tuple[Lowering, list[Row]]] = []
    total = 0
    for units, cohort in cohorts(program, scalars):
        rows = []
        lowering = Lowering(program, units)
        for row in walk(cohort):
            lowering.register(row)
            rows.append(row)
            total += len(units)
            if total > MAX_OPERATIONS:
                raise TimingError(
                    f"plan '{program.plan.name}' issues more than {MAX_OPERATIONS} operations",
                    advice="engine='arrays' follows regular plans of any length",
                )
        followed.append((lowering, rows))
    for lowering, rows in followed:
        columns = [operations(lowering, row) for row in rows] if record else fused(lowering, rows)
        masked = any(row.mask is not None for row in rows)
        for unit, mine in zip(lowering.units, zip(*columns, strict=True), strict=False):
            courses[unit].extend([op for op in mine if op is not None] if masked else mine)


def follow(program: Program, unit: int, scalars: Scalars) -> Iterator[tuple[Any, ...]]:
    """The operations of one unit, made while it runs: a receive-from-any decides what comes next."""
    cohort = Cohort(program.plan, program.storages, unit, scalars)
    program.cohorts.append(cohort)
    lowering = Lowering(program, [unit])
    course = walk(cohort)
    row = next(course, None)
    while row is not None:
        answer = None
        for operation in operations(lowering, row):
            yield operation
            if isinstance(row.statement, pm.ReceiveAny):
                answer = operation[1].number
        # The walk completes the row of a receive-from-any once it knows the member taken.
        following = _next(course, answer)
        if isinstance(row.statement, pm.ReceiveAny):
            yield from take_message(lowering, row)
        row = following


def _next(course: Walk, answer: Any) -> Row | None:
    try:
        return course.send(answer)
    except StopIteration:
        return None


def arrays(machine: Resources, scalars: Scalars, *, record: bool = False) -> tuple[Program, Times]:
    """The evaluator for regular plans; `NotRegular` if this is none."""
    check_regular(machine.plan, machine)
    program = Program(machine)
    try:
        return program, Arrays(program, _lanes(program, scalars), record=record).run()
    except LinksShared:
        pass  # all users of every link have to be known before the first message
    program = Program(machine)
    for units, cohort in cohorts(program, scalars):
        lowering = Lowering(program, units)
        for row in walk(cohort):
            lowering.register(row)
    program.cohorts.clear()
    return program, Arrays(program, _lanes(program, scalars), record=record, alone=True).run()


def _lanes(program: Program, scalars: Scalars) -> list[Lane]:
    return [Lane(program, units, cohort) for units, cohort in cohorts(program, scalars)]
