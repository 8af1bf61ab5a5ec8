"""``simulate(plan, machine=…)``: how long a Plan takes on an HDA, and why.

r = simulate(plan, machine="ahbm")
r.time_ns, r.summary(), r.why_slow()
r = simulate(plan, {"x": x}, machine="ahbm")     # with data: r.outputs too
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatile.core.limits import enough_memory, time_limit
from megatile.core.progress import Listener, estimated
from megatile.hda import HDA, machine as find_machine
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan, ReadScalar, ReceiveAny, require_plan
from megatile.plan.structure import check_structure
from megatile.sim.data import Assumed
from megatile.sim.result import Result, Run, wants_communication_trace
from megatile.sim.running import RunningMachine
from megatile.sim.simulation import EVERYTHING, MAX_RECORDS, Simulation, commands, engine_name
from megatile.sim.stuck import deadlock, wait_graph
from megatile.timing.faults import current_faults
from megatile.timing.view import Timing, TimingError, as_timing

MANY = 1 << 16
"""Commands up to which it is recorded at once what each of them touches."""


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
    max_seconds: float | None = None,
    progress: bool | Listener = False,
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

    A run that takes longer than ``max_seconds`` on the wall raises `TimeBudgetExceeded`, which says how far
    it came. ``progress=True`` shows a bar with the time left on stderr, if that is a terminal and the run
    takes more than a second; it may be a function of (what, done, of) instead.
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
    with (
        time_limit(max_seconds),
        estimated(progress),
        enough_memory(f"plan '{plan.name}' of {plan.units} units"),
    ):
        options = as_timing(timing).options(hda, plan.scale)
        runs = [
            Run(plan, hda, option, current_faults(), engine, installed, launch, scalars=Assumed(assume))
            for option in options
        ]
        for run in runs:
            run.resources  # noqa: B018  (plans that need more units than there are are refused first)
        if capacity:
            check_memory(plan, hda)
        given, records = (inputs or {}) if with_data else None, MAX_RECORDS if record else 0
        at_once = len(runs) == 1 or ReadScalar in plan.kinds
        for run in runs:
            run.run(records, inputs=given if at_once else None)
        best = min(runs, key=lambda run: run.end_ps)
        if not at_once and given is not None:
            best.run(records, inputs=given)
        result = Result(best, best.outputs)
    if record and wants_communication_trace():
        result.print_communication()
    return result


class OneLaunch(RunningMachine):
    """The machine of one run: nothing comes beside its launch, so that only what its own units share has to
    be waited for, and what was recorded stays where it is."""

    def __init__(self, run: Run, records: int, operands: bool) -> None:
        self._run, self._records, self._operands = run, records, operands
        super().__init__(run.hda, engine=run.engine)

    def _new(self) -> Simulation:
        run, count = self._run, commands(self._run.plan)
        # What a receive-from-any took is found in the records.
        keep = max(
            self._records if count <= self._records else 0, EVERYTHING if ReceiveAny in run.plan.kinds else 0
        )
        operands = self._operands or count <= MANY
        return Simulation(record=keep, engine=self.engine, contended=run.contended, operands=operands)

    def _stuck(self) -> None:
        raise deadlock(f"plan '{self._run.plan.name}' is deadlocked", wait_graph(self._simulation))


def _perform(run: Run, records: int, operands: bool, inputs: Mapping[str, Any] | None) -> None:
    """Run a plan alone."""
    session = OneLaunch(run, records, operands)
    launch = session.start(run.resources, inputs=inputs, scalars=run.scalars, turns=False, control=run.launch)
    found = session.wait(launch)
    run.outputs, run.record, run.messages, run.choices = found.outputs, None, found.messages, found.choices
    run.timed_by = run.timed_by or found.timed_by
    run.end_ps, run.begin_ps, run.scalars = found.time_ps, found.begin_ps, launch._scalars
    run.simulation, run.launched = (
        (session._simulation, launch._launched) if launch._launched else (None, None)
    )
    vars(session).clear()  # it and its workers know each other: the engine's memory goes with the result


Run.perform = _perform
