"""The report of a deadlock: who waits for whom, on what, and where that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.plan.code import Instruction
from megatile.plan.cohort import Actors, Cohort, InvalidDirection, Queues, nobody_there, spread, uniform
from megatile.plan.model import Statement
from megatile.plan.text import statement_text
from megatile.trace import Pointers, Waiter, WaitGraph

if TYPE_CHECKING:
    from megatile.plan.follow import Follower

MAX_REPORTED_UNITS = 8
"""Units that a report of a deadlock names."""
LACKS = {"send": "credit", "wait": "signal", "collective": "barrier"}


class PlanDeadlock(MegatileError, RuntimeError):
    """Nothing can proceed and something waits. ``waits`` lists (unit, statement, what it waits for);
    ``graph`` holds who waits for whom and the pointers of every queue, also as ``graph.dot()``.
    """

    def __init__(
        self,
        message: str,
        waits: list[tuple[int, Statement, str]],
        graph: WaitGraph | None = None,
        **options: Any,
    ):
        super().__init__(message, **options)
        self.waits = waits
        self.graph = graph or WaitGraph(())


def deadlock(walker: Follower) -> MegatileError:
    """Return who waits for whom, on what, and where that is written; or that somebody waits for nobody."""
    alone = waits_for_nobody(walker)
    if alone is not None:
        return alone
    actors = walker.actors
    waits: list[tuple[int, Statement, str]] = []
    for cohort in walker.waiting:
        instruction = walker.instruction(cohort)
        if instruction.statement is not None:
            for at in range(min(len(cohort), MAX_REPORTED_UNITS)):
                reason = reason_of(walker, cohort.part(np.asarray([at])), instruction)
                number = actors.number(cohort.level, int(cohort.units[at]))
                waits.append((number, instruction.statement, reason))
    waits.sort(key=lambda wait: wait[0])
    lines = [
        f"  {actors.label(u)} {why} at {s.source or statement_text(s)}"
        for u, s, why in waits[:MAX_REPORTED_UNITS]
    ]
    total = sum(len(c) for c in walker.waiting)
    more = [f"  ... and {total - MAX_REPORTED_UNITS} more units"] if total > MAX_REPORTED_UNITS else []
    lines += [
        f"  {count} instances of level '{name}' are not resident, and no slot becomes free"
        for name, count in walker.residency.absent().items()
    ]
    graph = wait_graph(walker)
    if cycle := graph.cycle():
        names = [waiter.unit.removeprefix("unit ") for waiter in (*cycle, cycle[0])]
        lines.append(f"  each waits for the next: {' -> '.join(names)}")
    dump = graph.pointer_lines(2 * MAX_REPORTED_UNITS)
    text = "\n".join(["deadlock: nothing can proceed", *lines, *more, *dump])
    return PlanDeadlock(text, waits, graph, place=waits[0][1].source if waits else None)


def wait_graph(walker: Follower) -> WaitGraph:
    """Return the state of the walk: every waiting unit, and both ends of every queue that one of them
    uses."""
    waiters, waiting, actors = {}, set(), walker.actors
    for cohort in walker.waiting:
        instruction, peers = walker.instruction(cohort), waited_for(walker, cohort)
        kind, statement = instruction.kind, instruction.statement
        for unit, peer in zip(cohort.units.tolist(), peers.tolist(), strict=True):
            waiting.add((walker.plan.level(cohort.level).name, unit))
            other = actors.label(peer) if peer >= 0 else "nobody"
            what = LACKS.get(kind, "data"), getattr(statement, "channel", None) or kind, other
            where = f"{statement.source.file}:{statement.source.line}" if statement.source else ""
            number = actors.number(cohort.level, unit)
            waiters[number] = Waiter(actors.label(number), kind, *what, where)
    pointers = [p for queues in walker.queues.values() for p in _pointers(queues, waiting, actors)]
    return WaitGraph(tuple(waiters[number] for number in sorted(waiters)), tuple(pointers))


def _pointers(queues: Queues, waiting: set[tuple[str, int]], actors: Actors) -> Iterator[Pointers]:
    """Yield both ends of the queues that waiting units receive from or feed."""
    channel, units = queues.channel, len(queues.sent)
    level = actors.plan.level(channel.level).name
    for member in range(channel.members):
        sources = np.broadcast_to(queues.source({"unit": np.arange(units), "member": member}), units)
        for unit, source in enumerate(sources.tolist()):
            if source < 0 or not {(level, unit), (level, source)} & waiting:
                continue
            sent, label = int(queues.sent[unit, member]), channel.label(member)
            freed = sent - int((queues.holds[unit, member] > 0).sum())
            here, there = (actors.name(level, u) for u in (unit, source))
            yield from Pointers.of_queue(label, here, there, sent, sent, freed, channel.slots)


def waits_for_nobody(walker: Follower) -> InvalidDirection | None:
    """Return the error of a unit that receives where it has no neighbour, if there is one."""
    for cohort in sorted(walker.waiting, key=lambda c: int(c.units.min())):
        instruction = walker.instruction(cohort)
        if instruction.kind != "receive":
            continue
        alone = np.broadcast_to(waited_for(walker, cohort) == -1, len(cohort))
        if alone.any():
            at, statement = int(np.argmax(alone)), instruction.statement
            member = int(spread(instruction.functions["member"](cohort.ints), len(cohort))[at])
            channel = walker.queues[statement.channel].channel
            error = nobody_there(int(cohort.units[at]), channel, member, sending=False)
            error.place = statement.source
            return error
    return None


def waited_for(walker: Follower, cohort: Cohort) -> Any:
    """Return the actor that each unit of a blocked cohort waits for (-1: not a single one)."""
    instruction, env = walker.instruction(cohort), cohort.ints
    if instruction.kind not in ("send", "receive"):
        return np.full(len(cohort), -1)
    channel = walker.queues[instruction.statement.channel].channel
    if instruction.kind == "send":
        found = spread(instruction.functions["to"](env), len(cohort))
    else:
        mine = walker.mine(cohort, channel.name)
        found = channel.source.evaluate({"unit": mine, "member": instruction.functions["member"](env)})
    first = walker.actors.number(channel.level, 0)
    return np.where(np.asarray(found) >= 0, np.asarray(found) + first, found)


def reason_of(walker: Follower, cohort: Cohort, instruction: Instruction) -> str:
    """Return what a unit (the cohort has one) waits for."""
    rule = _REASONS.get(instruction.kind)
    statement = instruction.statement
    return f"waits at {statement_text(statement)}" if rule is None else rule(walker, cohort, instruction)


def _values(cohort: Cohort, instruction: Instruction, *names: str) -> list[int]:
    return [int(uniform(instruction.functions[name](cohort.ints))) for name in names]


def _credit(walker: Follower, cohort: Cohort, instruction: Instruction) -> str:
    channel = walker.queues[instruction.statement.channel].channel
    to, member = _values(cohort, instruction, "to", "member")
    return f"waits for a free slot of {channel.label(member)} of {walker.actors.name(channel.level, to)}"


def _message(walker: Follower, cohort: Cohort, instruction: Instruction) -> str:
    channel = walker.queues[instruction.statement.channel].channel
    (member,) = _values(cohort, instruction, "member")
    sender = walker.actors.label(int(waited_for(walker, cohort)[0]))
    return f"waits for a message on {channel.label(member)} from {sender}"


def _any_message(walker: Follower, cohort: Cohort, instruction: Instruction) -> str:
    members, channel = instruction.statement.members, instruction.statement.channel
    return f"waits for a message on any of {len(members)} queues of '{channel}'"


def _flag(walker: Follower, cohort: Cohort, instruction: Instruction) -> str:
    member, value = _values(cohort, instruction, "member", "value")
    now = walker.flags[instruction.statement.flag][int(walker.own_flag(cohort, instruction)[0]), member]
    return f"waits for flag '{instruction.statement.flag}' to reach {value} (it is {now})"


def _group(walker: Follower, cohort: Cohort, instruction: Instruction) -> str:
    statement = instruction.statement
    keys, unit = walker.keys[statement.group], int(cohort.units[0])
    there = {
        int(u)
        for c in walker.waiting
        if walker.instruction(c).statement is not None and c.level == cohort.level
        for u in c.units
    }
    missing = [int(u) for u in np.flatnonzero(keys == keys[unit]) if int(u) not in there]
    who = f"; missing: {missing[:MAX_REPORTED_UNITS]}" if missing else ""
    return f"waits for its group of '{statement.group}' at the {statement.kind}{who}"


_REASONS: dict[str, Callable[[Any, Cohort, Instruction], str]] = {
    "send": _credit,
    "receive": _message,
    "receive_any": _any_message,
    "wait": _flag,
    "collective": _group,
}
