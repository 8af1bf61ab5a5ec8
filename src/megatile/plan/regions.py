"""Which regions a statement reads and writes."""

from __future__ import annotations

from megatile.plan.statements import (
    Collective,
    Compute,
    ReadScalar,
    Receive,
    ReceiveAny,
    Region,
    Send,
    Statement,
)


def reads_of(statement: Statement) -> tuple[Region, ...]:
    """The regions a command reads, in order; an accumulating operation lists its destination itself."""
    if isinstance(statement, Compute):
        return statement.reads
    if isinstance(statement, (Send, ReadScalar)):
        return (statement.read,)
    if isinstance(statement, Collective) and statement.read is not None:
        return (statement.read,)
    return ()


def write_of(statement: Statement) -> Region | None:
    """The region a command writes, if any."""
    if isinstance(statement, (Compute, Collective)):
        return statement.write
    if isinstance(statement, (Receive, ReceiveAny)):
        return statement.into
    return None


def regions_of(statement: Statement) -> tuple[Region, ...]:
    write = write_of(statement)
    return (*reads_of(statement), *((write,) if write is not None else ()))
