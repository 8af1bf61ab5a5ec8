"""When nothing can proceed and something waits: who waits for whom, and every queue's pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatile.core.errors import Place
from megatile.sim.pending import known
from megatile.sim.program import CONSUME, GENERAL, MEET, RECEIVE, SEND, SHIP, TAKE, WAIT, Link
from megatile.trace import Pointers, Waiter, WaitGraph

if TYPE_CHECKING:
    from megatile.sim.runahead import RunAhead
    from megatile.sim.unit import UnitState


def source_of(place: Place | None) -> str:
    """``file:line`` of a statement, or nothing."""
    if place is None or place.file is None:
        return ""
    return f"{place.file}:{place.line}" if place.line is not None else place.file


def wait_graph(run: RunAhead, time_ps: int) -> WaitGraph:
    """The state of a run that got stuck."""
    waiters = tuple(w for unit in run.units if not unit.done for w in _waiters(run, unit))
    return WaitGraph(waiters, tuple(_pointers(run)), time_ps)


def _waiters(run: RunAhead, unit: UnitState) -> list[Waiter]:
    names = run.program.machine.names
    operation = unit.operations[unit.pc]
    me = names[unit.unit]
    if operation[0] == GENERAL:
        op = operation[1]
        source = source_of(op.row.statement.source)
        if op.kind in ("send", "receive"):
            lacks = "credit" if op.kind == "send" else "data"
            peer = op.link.receiver if op.kind == "send" else op.link.sender
            return [Waiter(me, op.kind, lacks, op.link.label, names[peer], source)]
        if op.kind == "any":
            return [Waiter(me, "receive any", "data", k.label, names[k.sender], source) for k in op.link]
        if op.kind == "meet":
            return _missing(run, me, op.key, op.row.statement)
        return [Waiter(me, op.kind, "signal", str(op.key[0]) if op.key else "", "nobody", source)]
    if operation[0] == MEET:
        return _missing(run, me, operation[1], operation[4].statement)
    if operation[0] == WAIT:
        statement = operation[3].statement
        return [Waiter(me, "wait", "signal", str(statement.flag), "nobody", source_of(statement.source))]
    if operation[0] == CONSUME:
        link = operation[1][5]
        return [
            Waiter(
                me,
                "receive",
                "data",
                link.label,
                names[link.sender],
                source_of(operation[1][6].statement.source),
            )
        ]
    if operation[0] == TAKE:
        link, source = operation[1][5], source_of(operation[4].statement.source)
        return [Waiter(me, "receive", "data", link.label, names[link.sender], source)]
    source = source_of(operation[4].statement.source)
    if operation[0] in (SEND, SHIP):
        link = operation[1][5]
        return [Waiter(me, "send", "credit", link.label, names[link.receiver], source)]
    assert operation[0] == RECEIVE
    link = operation[1][1]
    return [Waiter(me, "receive", "data", link.label, names[link.sender], source)]


def _missing(run: RunAhead, me: str, key: Any, statement: Any) -> list[Waiter]:
    """Who has not come to a meeting."""
    names, label = run.program.machine.names, f"{statement.kind} {key[0]}"
    missing = [m for m in run.program.members[key[:2]] if m not in run.rules.meetings[key].came]
    source = source_of(statement.source)
    return [Waiter(me, label, "barrier", key[0], names[m], source) for m in missing]


def _pointers(run: RunAhead) -> list[Pointers]:
    """Both ends of every known queue: sent and credits at the sender, arrived and freed at the receiver."""
    names = run.program.machine.names
    found: list[Pointers] = []
    links: dict[int, Link] = {link.queue: link for link in run.program.known_links()}
    for queue in sorted(links):
        link = links[queue]
        arrived: list[Any] = run.arrivals[queue]
        freed = len(run.credits[queue])
        landed = sum(1 for t in arrived if known(t) is not None)
        slots = link.channel.slots
        here, there = names[link.receiver], names[link.sender]
        found.append(Pointers(there, f"->{link.label}", here, len(arrived), 0, 0, freed, slots))
        found.append(Pointers(here, link.label, there, 0, freed, landed, 0, slots))
    return found
