"""Why a run cannot go on: who waits for whom, every queue's pointers, and what is wrong with a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.check import CountingWalk
from megatile.plan.commands import chooser
from megatile.plan.follow import PlanDeadlock
from megatile.sim import plain, state as st
from megatile.sim.data import Scalars
from megatile.sim.instructions import AGAIN, END, SIGNAL, InstructionRow, LoopAgainRow, SignalRow
from megatile.sim.queue_queries import QueueMisuse
from megatile.sim.recorded_rows import source_of
from megatile.sim.simulation import NEVER, Simulation
from megatile.sim.state import Children, LevelRow, Pool, Queue, Slot, UnitRow
from megatile.sim.stream_peers import StreamPeers
from megatile.timing.machine_timing import TimingError
from megatile.trace import Pointers, Waiter, WaitGraph


class Deadlock(PlanDeadlock):
    """Nothing can proceed and something waits. ``graph`` holds the dump, also as ``graph.dot()``."""

    def __init__(self, message: str, graph: WaitGraph, **options: Any) -> None:
        super().__init__(message, [], graph, **options)


def wait_graph(simulation: Simulation, names: Mapping[int, str] | None = None) -> WaitGraph | None:
    """Return the state of a simulation that cannot go on; None if all instances are done. ``names`` are those
    of the launches, where there are several."""
    units = simulation.arena.rows("units")
    waiting = np.flatnonzero(units[:, UnitRow.state] < st.DONE).tolist()
    outside = tuple(_outside(simulation))
    if not waiting and not outside:
        return None
    waiting.sort(key=lambda g: units[g, UnitRow.state] == st.PENDING)
    signals = _signals(simulation, waiting) if (units[waiting, UnitRow.state] == st.FLAG).any() else {}
    waiters = tuple(
        replace(w, launch=(names or {}).get(int(units[g, UnitRow.launch]), ""))
        for g in waiting
        for w in _waiters(simulation, g, signals)
    )
    return WaitGraph(
        waiters + outside, tuple(_pointers(simulation)), max(simulation.arena.last, simulation.arena.clock)
    )


def _outside(simulation: Simulation) -> Iterator[Waiter]:
    """Instances that wait for a slot which nobody leaves."""
    rows, units = simulation.arena.rows("children"), simulation.arena.rows("units")
    for below in rows[rows[:, Children.waiting] > 0].tolist():
        seat = int(simulation.arena.rows("pools")[below[Children.pool], Pool.first_unit])
        level = simulation.arena.rows("levels")[units[seat, UnitRow.level]]
        for number in range(
            below[Children.next_number], below[Children.next_number] + below[Children.waiting]
        ):
            me = simulation.name(int(level[LevelRow.first_actor]) + number)
            holder = simulation.name(int(units[seat, UnitRow.actor]))
            yield Waiter(me, "begin", "slot", "", holder, "")


def _signals(simulation: Simulation, waiting: list[int]) -> dict[int, list[int]]:
    """Return, by counter, the instances that wait for something else before they signal it."""
    arena, units, found = simulation.arena, simulation.arena.rows("units"), dict[int, list[int]]()
    streams: dict[tuple[int, int, int], dict[int, int]] = {}
    for g in waiting:
        (launched, level, _), number = simulation.view(g), int(units[g, UnitRow.number])
        if number == st.NONE:
            continue
        stream = int(launched.table.stream_of[level][number])
        streams.setdefault((launched.number, level, stream), {})[number] = g
    for (launch, level, stream), members in streams.items():
        launched, code = simulation.launches[launch], arena.rows("code")
        first = launched.table.streams[stream].first
        mine = code[first : first + int(np.argmax(code[first:, InstructionRow.kind] == END))]
        again = np.flatnonzero(mine[:, InstructionRow.kind] == AGAIN)
        for at in np.flatnonzero(mine[:, InstructionRow.kind] == SIGNAL).tolist():
            peers = StreamPeers(simulation, launched, level, stream, first + at)
            (to, known), (member, also) = (
                peers.value(int(mine[at, x])) for x in (SignalRow.to, SignalRow.member)
            )
            if not (peers.fixed and known and also):
                continue
            flag = arena.flags[launched.flags + int(mine[at, SignalRow.flag])]
            start, each = flag.first_counter, flag.members
            round_again = again[mine[again, LoopAgainRow.test] <= first + at]
            for number, counter in zip(
                peers.units.tolist(), (start + to * each + member).tolist(), strict=True
            ):
                here = int(units[members[number], UnitRow.pc]) - first if number in members else len(mine)
                if here <= at or (here < len(mine) and (round_again >= here).any()):
                    found.setdefault(counter, []).append(int(units[members[number], UnitRow.actor]))
    return found


def _waiters(simulation: Simulation, g: int, signals: Mapping[int, list[int]]) -> Iterator[Waiter]:
    unit = simulation.arena.rows("units")[g]
    state, on, pc = int(unit[UnitRow.state]), int(unit[UnitRow.blocked_on]), int(unit[UnitRow.pc])
    launched = simulation.launch_of(g)
    actor = int(unit[UnitRow.actor])
    me = simulation.name(actor)
    if state in (st.AT_RENDEZVOUS, st.HAZARD):
        pc -= 1
    statement = simulation.code_tables.statements[pc]
    source = source_of(statement.source) if statement is not None else ""
    if state == st.PENDING:
        yield Waiter(me, "begin", "unit", launched.plan.name, me, "")
    elif state in (st.DATA, st.CREDIT):
        label, receiver, feeder = simulation.label(on)
        command, lacks, peer = (
            ("receive", "data", feeder) if state == st.DATA else ("send", "credit", receiver)
        )
        yield Waiter(me, command, lacks, label, peer, source)
    elif state == st.ANYDATA:
        engine, s = plain.engine(), simulation.arena.memory
        for member in statement.members:
            queue = engine.queue_of(s, engine.channel_of(s, g), engine.receiver_of(s, g), member)
            label, _, feeder = simulation.label(int(queue))
            yield Waiter(me, "receive any", "data", label, feeder, source)
    elif state == st.FLAG:
        for peer in map(simulation.name, signals.get(on, ())) if on in signals else ("nobody",):
            yield Waiter(me, "wait", "signal", statement.flag, peer, source)
    elif state == st.AT_RENDEZVOUS:
        units = simulation.arena.rows("units")
        at_it = (units[:, UnitRow.state] == st.AT_RENDEZVOUS) & (units[:, UnitRow.blocked_on] == on)
        there = set(units[at_it, UnitRow.actor].tolist())
        label = f"{statement.kind} {statement.group}"
        first = actor - launched.which(actor)[1]
        for member in launched.table.members[on - launched.rendezvous]:
            if first + member not in there:
                name = simulation.name(first + member)
                yield Waiter(me, label, "barrier", statement.group, name, source)
    else:
        yield Waiter(me, "read_scalar", "data", "", "nobody", source)


def _pointers(simulation: Simulation) -> Iterator[Pointers]:
    """Both ends of every queue in use: sent and credits at the sender, arrived and freed at the receiver."""
    rows = simulation.arena.rows("queues")
    used = {q: ends for launched in simulation.launches for q, ends in launched.queue_ends.items()}
    for number in sorted(used, key=lambda q: used[q]):
        yield from Pointers.of_queue(
            *simulation.label(number), *counts(simulation, number), int(rows[number, Queue.slots])
        )


def counts(simulation: Simulation, number: int) -> tuple[int, int, int]:
    """Return how many messages of a queue were sent, have arrived and are freed."""
    queue = simulation.arena.rows("queues")[number]
    sent, slots = int(queue[Queue.sent]), int(queue[Queue.slots])
    last = simulation.arena.rows("slots")[queue[Queue.ring] : queue[Queue.ring] + slots][: min(sent, slots)]
    landed, freed = (
        sent - int(np.count_nonzero(last[:, c] == st.UNKNOWN)) for c in (Slot.arrived, Slot.returned)
    )
    return sent, landed, freed


def deadlock(what: str, graph: WaitGraph | None) -> Deadlock | TimingError:
    """Return the error of a run that cannot go on: its units wait for each other, or its time has run out."""
    if graph is None or not 0 <= (graph.time_ps or 0) < NEVER:
        return TimingError(
            "the run takes longer than 53 days, the limit of simulated time",
            advice="use a faster machine or less work",
        )
    first = (graph.cycle() or graph.waiters or (None,))[0]
    advice = f"look at {first.source}" if first is not None and first.source else None
    return Deadlock(f"{what}\n{graph.text()}", graph, advice=advice)


class _Explanation(CountingWalk):
    """The walk of `check` with the integers that the timed run reads."""

    def __init__(self, plan: pm.Plan, scalars: Scalars) -> None:
        super().__init__(plan, {})
        self.scalars = scalars
        self.reads: dict[tuple[str, Any], int] = {}

    def on_read_scalar(self, cohort: Any, instruction: Any) -> Any:
        statement: pm.ReadScalar = instruction.statement
        values = []
        for unit in (chooser(cohort, u) for u in cohort.units.tolist()):
            count = self.reads.get((statement.name, unit), 0)
            self.reads[statement.name, unit] = count + 1
            values.append(int(self.scalars(statement, unit, count)))
        return np.array(values, dtype=np.int64)


def explain(plan: pm.Plan, scalars: Scalars, misuse: QueueMisuse) -> None:
    """Raise the error that ``check`` gives for a plan that misuses its queues."""
    walk = _Explanation(plan, scalars)
    walk.run()
    walk.check_all_received()
    raise TimingError(f"plan '{plan.name}': {misuse}", advice="run check(plan)")
