"""Contended copies at which a unit may stand still until its turn has come.

Standing still is right if nothing that comes later could be seen by others before that turn: everything
visible between a load and the next one has to wait for it, through its data or through an engine, and the
next one waits for the same engine. (A send of something else may overtake the load, and so must be issued
while that still waits; such a copy stays a COPY, and so do those before it.)
"""

from __future__ import annotations

from typing import Any

from megatile.sim.lowering import Lowering, Made
from megatile.sim.program import (
    CONSUME,
    COPY,
    GENERAL,
    LOAD,
    PUT,
    RECEIVE,
    RELEASE,
    RUN,
    SEND,
    SHIP,
    TAKE,
    WAIT,
)  # fmt: skip
from megatile.sim.transfers import only_stage

Use = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""Engine (None: none), blocks read, blocks written."""
UNSEEN = frozenset((RUN, PUT, RECEIVE, WAIT))
"""Kinds of operations that others do not notice by themselves."""


def loads(low: Lowering, columns: list[Made]) -> None:
    """Make contended copies loads where the unit may stand still."""
    if not low.contended:
        return
    window: list[Made] = []
    for index in range(len(columns) - 1, -1, -1):
        column = columns[index]
        copies = [op for op in column if op is not None and op[0] == COPY]
        if not copies:
            window.append(column)
            continue
        if not _waits_for(low, column, copies, window):
            return
        columns[index] = [op and (_load(low, op) if op[0] == COPY else op) for op in column]
        window = []


def _waits_for(low: Lowering, column: Made, copies: list[Any], window: list[Made]) -> bool:
    """Whether all that others can see in the window (its last operation first) waits for these copies."""
    first = copies[0]
    alike = len(copies) == len(column) and _alike(copies)
    tables = low.program.regions.written, low.program.regions.read
    engines, writes = {first[1][0]}, set(first[4]) if alike else set()
    reads = set(first[3]) if alike else set()
    for others in reversed(window):
        present = [op for op in others if op is not None]
        for op in present[:1] if _alike(present) else present:
            use = _use(op)
            waits = use is not None and _depends(use, engines, reads, writes, tables)
            if not waits and op[0] not in UNSEEN:
                return False
            if waits and use is not None and len(present) == len(column) and _alike(present):
                engines.add(use[0])
                reads.update(use[1])
                writes.update(use[2])
    return True


def _alike(operations: list[Any]) -> bool:
    """Whether all units use the same engine and the same blocks."""
    first = operations[0]
    if len(operations) == 1:
        return True
    use = _use(first)
    return use is not None and all(
        op is first or (op[0] == first[0] and _use(op) == use) for op in operations
    )


def _depends(use: Use, engines: set[Any], reads: set[int], writes: set[int], tables: Any) -> bool:
    engine, read, write = use
    if engine is not None and engine in engines:
        return True
    written, seen = tables
    if any(other in writes for block in read for other in written[block]):
        return True
    return any(other in writes for block in write for other in written[block]) or any(
        other in reads for block in write for other in seen[block]
    )


def _use(op: tuple[Any, ...]) -> Use | None:
    """What an operation on blocks of the unit's own occupies; None for others."""
    kind = op[0]
    if kind == RUN:
        return op[1][0], op[2], op[3]
    if kind == COPY:
        return op[1][0], op[3], op[4]
    if kind in (SEND, SHIP):
        return op[1][0], (op[3],), ()
    if kind == TAKE:
        return op[1][1], (), (op[3],)
    if kind == CONSUME:
        return op[1][1], op[3], op[4]
    if kind == RELEASE:
        return None, (), (op[1][1],)
    if kind == GENERAL and op[1].kind in ("send", "copy", "receive") and not op[1].shared:
        made = op[1]
        return made.engine, tuple(b[2] for b in made.reads), tuple(b[2] for b in made.writes)
    return None


def _load(low: Lowering, operation: tuple[Any, ...]) -> tuple[Any, ...]:
    _, info, number, reads, writes, row = operation
    known = low.loads.get(id(info))
    if known is None:
        # The copy's own fields are kept in it, so that it lives as long as its number is in use here.
        only = only_stage(low.program, info[1], info[2])
        known = low.loads[id(info)] = (info, None if only is None else (*info, only))
    return operation if known[1] is None else (LOAD, known[1], number, reads, writes, row)
