"""``simulate(plan, machine=…)``: how long a Plan takes on an HDA, and why.

r = simulate(plan, machine="ahbm")
r.time_ns, r.summary(), r.why_slow()
r = simulate(plan, {"x": x}, machine="ahbm")     # with data: r.outputs too
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from megatile.core.errors import did_you_mean
from megatile.hda import HDA, machine as find_machine
from megatile.plan import model as pm
from megatile.plan.check import CountingWalk
from megatile.plan.commands import chooser
from megatile.plan.follow import PlanDeadlock
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan, require_plan
from megatile.plan.structure import check_structure
from megatile.sim.answers import QueueMisuse
from megatile.sim.data import Scalars, assumed, observed, outputs, reads_scalars
from megatile.sim.record import Record, choices, has_any
from megatile.sim.result import Outcome, Result, wants_communication_trace
from megatile.sim.simulation import MOST_RECORDS, Launched, Simulation, commands
from megatile.sim.stuck import wait_graph
from megatile.sim.symmetry import representative
from megatile.timing.faults import Faults, current_faults
from megatile.timing.resources import Resources
from megatile.timing.view import Timing, TimingError, as_timing
from megatile.trace import WaitGraph

ENGINES = ("compiled", "plain")
"""How the engine runs: as machine code, or as the Python that it is translated from."""
OLD_ENGINES = ("run-ahead", "arrays", "bucket")
_ROUNDS = 8
EVERYTHING = 1 << 40
"""More commands than any run records."""
MANY = 1 << 16
"""Commands up to which it is recorded at once what each of them touches."""
LARGE = 1 << 18
"""Commands from which on a run that records nothing looks for a unit that stands for all."""


class Deadlock(PlanDeadlock):
    """Nothing can proceed and something waits. ``graph`` holds the dump, also as ``graph.dot()``."""

    def __init__(self, message: str, graph: WaitGraph, **options: Any) -> None:
        super().__init__(message, [], graph, **options)


def simulate(
    plan: Plan,
    inputs: Mapping[str, Any] | None = None,
    *,
    machine: HDA | str,
    data: bool | Mapping[str, Any] | None = None,
    engine: str | None = None,
    assume: Mapping[str, Any] | None = None,
    installed: bool = False,
    timing: Timing | None = None,
    launch: bool = True,
    record: bool = True,
    capacity: bool = True,
) -> Result:
    """Time a plan on a machine; with ``inputs`` (also as ``data=``) compute its outputs too.

    The machine's own engines and control path do the work, or what ``timing`` says: with the ``timing`` of a
    prediction (a `Library`) a collective takes the time of library kernels, where the machine has a protocol
    for them; ``launch=False`` leaves the host's launch out, as captured graphs do.

    ``data=True`` asks for outputs of a plan without inputs, ``data=False`` for times alone.

    ``engine`` is ``compiled`` or ``plain``; without it short runs are plain and long ones compiled, with the
    same times. ``assume`` gives values for integers that the plan reads from its data, where there is none.
    ``installed`` leaves out the install of the queues (`Session` does that once per unit). The faults of an
    enclosing ``with faults(...)`` apply. ``record=False`` keeps no times of single commands, which saves
    memory; a trace that is asked for later is then made by a second run. ``capacity=False`` also times plans
    that do not fit the machine's memories.
    """
    engine = engine_name(engine)
    require_plan(plan, "simulate")
    if not isinstance(plan, Plan) or not isinstance(machine, (HDA, str)):
        raise TimingError(
            f"simulate takes a Plan and a machine, not {type(plan).__name__} and {type(machine).__name__}",
            advice='simulate(plan, machine="ahbm")',
        )
    hda = find_machine(machine) if isinstance(machine, str) else machine
    check_structure(plan)
    if isinstance(data, Mapping):
        inputs, data = data, True
    with_data = inputs is not None if data is None else data
    runs = [
        Run(plan, hda, option, current_faults(), engine, installed, launch)
        for option in as_timing(timing).options(hda, plan.scale)
    ]
    if capacity:
        check_memory(plan, hda)
    for run in runs:
        run.time(inputs, with_data, assume, MOST_RECORDS if record else 0)
    best = min(runs, key=lambda run: run.end_ps)
    order = SimpleNamespace(choices=best.choices)
    results = outputs(plan, inputs or {}, order) if with_data else None
    result = Result(best, results)
    if record and wants_communication_trace():
        result.print_communication()
    return result


def engine_name(engine: str | None) -> str | None:
    """The engine that is meant; those of earlier releases are all the same one now."""
    if engine in OLD_ENGINES:
        warnings.warn(
            f"engine='{engine}': there is one engine now, which this name no longer chooses",
            DeprecationWarning,
            stacklevel=3,
        )
        return None
    if engine is not None and engine not in ENGINES:
        raise TimingError(
            f"there is no engine '{engine}'", advice=did_you_mean(str(engine), ENGINES, what="engines")
        )
    return engine


class Run(Outcome):
    """One plan on one machine under the faults that held when it was made."""

    def __init__(
        self,
        plan: Plan,
        hda: HDA,
        timing: Timing,
        faults: Faults,
        engine: str | None,
        installed: bool = False,
        launch: bool = True,
        contended: bool = True,
    ) -> None:
        super().__init__(
            plan, hda, timing=timing, faults=faults, engine=engine, installed=installed, launch=launch
        )
        self.resources = Resources(hda, plan, faults, installed=installed, timing=timing)
        """The machine as the plan sees it; plans that need more units than there are are refused."""
        self.contended = contended
        """Whether commands wait for what others use; if not, the time is a lower bound."""
        self.simulation: Simulation | None = None
        self.launched: Launched | None = None

    def time(
        self,
        inputs: Mapping[str, Any] | None,
        with_data: bool,
        assume: Mapping[str, Any] | None,
        records: int,
    ) -> None:
        """Find the plan's time; what kernels of a collective spend before the first message included.

        What a receive-from-any takes may decide what is read, and what is read may decide the times: then
        both are repeated until they agree.
        """
        self.scalars = assumed(assume)
        if reads_scalars(self.plan) and with_data:
            self.scalars, seen = observed(self.plan, inputs or {}, None)
            for _ in range(_ROUNDS if has_any(self.plan) else 0):
                self.run(records)
                self.scalars, again = observed(self.plan, inputs or {}, SimpleNamespace(choices=self.choices))
                if again == seen:
                    break
                seen = again
            else:
                if has_any(self.plan):
                    raise TimingError(
                        f"plan '{self.plan.name}' does not settle: what it reads depends on the order of "
                        "arrival and decides it",
                        advice="read from a fixed member, or simulate with assume=",
                    )
        self.run(records)

    def run(self, records: int, operands: bool = False) -> None:
        """Simulate, recording at most so many commands; what they touch only if there are few, or with
        ``operands``."""
        resources = self.resources
        one = representative(self.plan, resources) if symmetric(self.plan, records) else None
        if one is not None:
            self._run_one(one, resources)
            return
        # What a receive-from-any took is found in the records.
        count = commands(self.plan)
        keep = max(records if count <= records else 0, EVERYTHING if has_any(self.plan) else 0)
        self.simulation = simulation = Simulation(
            record=keep,
            engine=self.engine,
            contended=self.contended,
            operands=operands or count <= MANY,
        )
        self.launched = simulation.add(self.plan, resources, self.scalars)
        try:
            run_all(simulation)
            graph = wait_graph(simulation)
            if graph is not None:
                raise deadlock(f"plan '{self.plan.name}' is deadlocked", graph)
            self.messages = simulation.messages(self.launched)
        except QueueMisuse as misuse:
            explain(self.plan, self.scalars, misuse)
        self._ended(simulation.last_ps, resources)
        if has_any(self.plan):
            self.choices = choices(simulation, self.launched)

    def recorded(self, operands: bool = False) -> Record:
        """What was recorded; where nothing was, or it was too much, the run is repeated."""
        known = self.simulation
        if known is None or not known.complete_record or not known.most_records or known.operands < operands:
            self.run(EVERYTHING, operands)
        assert self.simulation is not None
        assert self.launched is not None
        return Record(self.simulation, self.launched)

    def _ended(self, last_ps: int, resources: Resources) -> None:
        self.end_ps = resources.whole_ps(last_ps, self.launch)
        self.begin_ps = max(0, self.end_ps - last_ps)

    def _run_one(self, one: Plan, resources: Resources) -> None:
        """Simulate the unit that stands for all; a trace is made by a second run, when it is asked for."""
        simulation = Simulation(record=0, engine=self.engine, contended=False)
        launched = simulation.add(one, resources, self.scalars)
        run_all(simulation)
        graph = wait_graph(simulation)
        if graph is not None:
            raise deadlock(f"plan '{self.plan.name}' is deadlocked in every unit", graph)
        self.simulation = None
        self._ended(simulation.last_ps, resources)
        for channel in self.plan.channels:
            counts = simulation.messages(launched)[channel.name]
            self.messages[channel.name] = {
                unit * channel.members + member: count
                for member, count in counts.items()
                for unit in range(self.plan.units)
            }


def run_all(simulation: Simulation) -> None:
    """Until nothing can go on."""
    while simulation.run() is not None:
        pass


Outcome.runner = Run


def symmetric(plan: Plan, records: int) -> bool:
    """Whether it is worth while to look for symmetry: nothing would be recorded anyway."""
    return (
        plan.units > 1
        and not plan.levels
        and records <= MOST_RECORDS
        and commands(plan) > max(records, LARGE)
    )


def deadlock(what: str, graph: WaitGraph) -> Deadlock:
    first = (graph.cycle() or graph.waiters or (None,))[0]
    advice = f"look at {first.source}" if first is not None and first.source else None
    return Deadlock(f"{what}\n{graph.text()}", graph, advice=advice)


class _Explanation(CountingWalk):
    """The walk of `check` with the integers that the timed run reads."""

    def __init__(self, plan: Plan, scalars: Scalars) -> None:
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


def explain(plan: Plan, scalars: Scalars, misuse: QueueMisuse) -> None:
    """Raise the error that ``check`` gives for a plan that misuses its queues."""
    walk = _Explanation(plan, scalars)
    walk.run()
    walk.check_left_over()
    raise TimingError(f"plan '{plan.name}': {misuse}", advice="look at what check(plan) says")
