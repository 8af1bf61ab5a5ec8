"""One case, read by SimPy and simulated: where they differ, in one line. As a script, a range of cases.

python -m tests.sim.judge 0 2000
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from tests.sim.random_cases import Case, random_case
from tests.sim.random_kernels import random_kernels
from tests.sim.random_launches import Launches, random_blocks, random_launches
from tests.sim.random_levels import random_levels
from tests.sim.simpy_reader import Run, read, read_all

from megatile.core.errors import MegatileError, RouteError
from megatile.plan import model as pm
from megatile.plan.deadlock import PlanDeadlock
from megatile.sim import Deadlock, simulate, simulation
from megatile.sim.data import Assumed
from megatile.sim.record import Record
from megatile.sim.simulation import QueueMisuse, Simulation
from megatile.timing import Resources, faults

NAMES: dict[type, str] = {
    pm.Send: "send",
    pm.ReceiveAny: "receive any",
    pm.ReadScalar: "read_scalar",
    pm.Signal: "signal",
    pm.Wait: "wait",
    pm.Start: "start",
}
Event = tuple[str, int | None, int | None]


def name_of(record: Any, copied: bool) -> str:
    statement = record.statement
    if isinstance(statement, pm.Compute):
        return statement.operation
    if isinstance(statement, pm.Collective):
        return statement.kind
    if copied or isinstance(statement, pm.Receive):
        return "receive" if statement.into is None else "receive into"
    return NAMES[type(statement)]


def expected(run: Run) -> list[Counter[Event]]:
    """Per unit, every issued command with its start and end."""
    units = []
    for records in run.records:
        found: Counter[Event] = Counter()
        last = None
        for record in records:
            again = isinstance(record.statement, pm.ReceiveAny) and last is record.statement
            name = name_of(record, again)
            last = None if again else record.statement
            found[name, None if name == "read_scalar" else record.start, record.end] += 1
        units.append(found)
    return units


def observed(result: Any) -> dict[str, Counter[Event]]:
    """The same out of a trace."""
    trace = result.trace
    units: dict[str, Counter[Event]] = {}
    for event in trace:
        start = None if event.operation == "read_scalar" else event.start_ps
        units.setdefault(event.unit, Counter())[event.operation, start, event.end_ps] += 1
    return units


def disagreement(case: Case, engines: tuple[str | None, ...] = (None,), **options: Any) -> str | None:
    """What the simulator and the reader say differently of a case; None where they agree."""
    f = case.faults
    with faults(
        link_down=f.link_down, slow_link=dict(f.slow_link), jitter=f.jitter, straggler=dict(f.straggler)
    ):
        try:
            run: Any = read(case.plan, case.hda, case.inputs, assume=case.assume)
        except MegatileError as error:
            run = error
        for engine in engines:
            found = _one(case, run, {"engine": engine, **options})
            if found is not None:
                return found if engine is None else f"{engine}: {found}"
    return None


def _one(case: Case, run: Any, options: dict[str, Any]) -> str | None:
    try:
        result = simulate(case.plan, case.inputs, machine=case.hda, assume=case.assume, **options)
    except PlanDeadlock as deadlock:
        return _stuck(run, deadlock)
    except MegatileError as error:
        if type(error) is type(run) or (isinstance(error, RouteError) and run.stuck):
            return None  # a path that is cut may be noticed before a plan gets stuck
        return f"simulate fails: {error!r}, the reader gives {run!r:.80}"
    if isinstance(run, MegatileError):
        return f"the reader fails: {run!r}, simulate gives {result.time_ps} ps"
    return _different(case, run, result)


def _stuck(run: Any, deadlock: PlanDeadlock) -> str | None:
    if isinstance(run, MegatileError) or not run.stuck:
        return f"simulate finds a deadlock, the reader none ({run!r:.60}): {deadlock}"
    if not isinstance(deadlock, Deadlock):
        return None  # found while the data were computed, without times
    theirs = {(w.unit, w.lacks, w.channel, w.waits_on) for w in deadlock.graph.waiters}
    units = {w.unit for w in deadlock.graph.waiters}
    mine = {s.unit for s in run.stuck}
    if len(units) != len(mine):
        return f"stuck: units {sorted(mine)} by the reader, {sorted(theirs)} by simulate"
    lacks = Counter((s.lacks, s.on) for s in {(s.unit, s.lacks, s.on): s for s in run.stuck}.values())
    others = Counter((lack, on) for _, lack, on in {t[:3] for t in theirs})
    return None if lacks == others else f"stuck: {dict(lacks)} by the reader, {dict(others)} by simulate"


def _different(case: Case, run: Run, result: Any) -> str | None:
    if run.stuck:
        return f"the reader finds a deadlock, simulate none: {run.stuck}"
    choices = {u: c for u, c in result.choices.items() if c and not isinstance(u, tuple)}
    if choices != run.choices:
        return f"choices: {run.choices} by the reader, {choices} by simulate"
    if run.time_ps != result.time_ps:
        return f"time: {run.time_ps} ps by the reader, {result.time_ps} by simulate"
    caches = {n: (t.hits, t.misses) for n, t in result.traffic.items() if t.hits + t.misses}
    if caches != run.caches:
        return f"caches: {run.caches} by the reader, {caches} by simulate"
    units, names = observed(result), result.record.names
    for number, mine in enumerate(expected(run)):
        missing = mine - units.get(names[number], Counter())
        if missing:
            return f"unit {number}: the reader has {sorted(missing.items(), key=str)[:3]}, simulate not"
    for name, array in (run.outputs or {}).items() if result.outputs is not None else ():
        if not np.array_equal(result.outputs[name], array, equal_nan=array.dtype.kind == "f"):
            return f"data of '{name}' differ"
    return None


def between_launches(case: Launches, engine: str = "plain", compared: list[int] | None = None) -> str | None:
    """What the engine and the reader say differently of launches beside each other; ``compared``: those that
    came to their end are added to it."""
    options: dict[str, Any] = {"assume": case.assume, "faults": case.faults}
    runs: Any
    try:
        runs = read_all(case.plans, case.hda, installed=True, **options)
    except MegatileError as error:
        runs = error
    simulation = Simulation(engine=engine, everything_shared=True)
    ended: dict[int, tuple[int, Record]] = {}
    launched = []
    try:
        for plan, at in case.plans:
            view = Resources(case.hda, plan, case.faults, installed=True)
            begin = at + view.start_ps(0)
            launched.append(simulation.add(plan, view, Assumed(case.assume), at=at, begin=begin))
        while (one := simulation.run()) is not None:
            ended[one.number] = simulation.arena.launches[one.number].last, Record(simulation, one)
    except (MegatileError, QueueMisuse) as error:
        return None if isinstance(runs, MegatileError) else f"the engine fails: {error!r}, the reader not"
    if isinstance(runs, MegatileError):
        return f"the reader fails: {runs!r}"
    for number, (one, run) in enumerate(zip(launched, runs, strict=True)):
        end, record = ended.get(one.number, (None, None))
        if run.stuck or any(not unit.done for unit in run.units):
            if end is not None:
                return f"launch {number}: the reader is stuck ({run.stuck}), the engine ends at {end}"
            continue
        if end != run.time_ps:
            return f"launch {number}: {run.time_ps} ps by the reader, {end} by the engine"
        units: dict[str, Counter[Event]] = {}
        for event in record.trace():
            start = None if event.operation == "read_scalar" else event.start_ps
            units.setdefault(event.unit, Counter())[event.operation, start, event.end_ps] += 1
        for unit, mine in zip(run.units, expected(run), strict=True):
            missing = mine - units.get(record.names[unit.index], Counter())
            if missing:
                return (
                    f"launch {number}, unit {unit.number}: only the reader has {sorted(missing, key=str)[:3]}"
                )
        if compared is not None:
            compared.append(number)
    return None


def main() -> None:
    import sys

    first, last = (int(a) for a in sys.argv[1:3])
    if "near" in sys.argv[3:]:
        simulation.RUN_AHEAD = 1
    if "launches" in sys.argv[3:]:
        judge_launches(first, last, sys.argv[3:])
        return
    makers = {"levels": random_levels, "kernels": random_kernels}
    make = next((makers[word] for word in sys.argv[3:] if word in makers), random_case)
    engines = tuple(name for name in ("plain", "compiled") if name in sys.argv[3:]) or (None,)
    bad = 0
    for seed in range(first, last):
        case = make(seed)
        try:
            found = disagreement(case, engines)
        except Exception as error:  # the point is to see all of them
            found = f"{type(error).__name__}: {error}"
        if found:
            bad += 1
            print(seed, case.hda.name, *case.patterns, case.faults or "", "|", found, flush=True)
    print(f"{last - first} cases, {bad} disagreements")


def judge_launches(first: int, last: int, words: list[str]) -> None:
    bad = 0
    for seed in range(first, last):
        for engine in ("plain", "compiled"):
            if engine in words or "compiled" not in words:
                make = random_blocks if "blocks" in words else random_launches
                found = between_launches(make(seed), engine)
                bad += found is not None
                print(seed, engine, found, flush=True) if found else None
    print(f"{last - first} sets of launches, {bad} disagreements")


if __name__ == "__main__":
    main()
