"""``simulate(plan, machine=…)``: how long a Plan takes on an HDA, and why.

r = simulate(plan, machine="ahbm")
r.time_ns, r.summary(), r.why_slow()
r = simulate(plan, {"x": x}, machine="ahbm")     # with data: r.outputs too
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from megatile.core.errors import did_you_mean
from megatile.hda import HDA
from megatile.hda import machine as find_machine
from megatile.plan.follow import PlanDeadlock
from megatile.plan.model import Plan, require_plan
from megatile.plan.structure import check_structure, one_level
from megatile.sim.array_sends import NotRegular
from megatile.sim.data import Scalars, assumed, observed, outputs, reads_scalars
from megatile.sim.evaluate import arrays, bucket, has_any, run_ahead
from megatile.sim.program import Program
from megatile.sim.result import Result, wants_communication_trace
from megatile.sim.rows import Odd
from megatile.sim.times import Times
from megatile.sim.usage import loads as count_loads
from megatile.sim.verify import explain, messages_through
from megatile.timing.faults import Faults, current_faults
from megatile.timing.resources import Resources
from megatile.timing.view import Timing, TimingError, as_timing
from megatile.trace import WaitGraph

ENGINES = ("run-ahead", "arrays", "bucket")
_SMALL = 64
"""Below this many units per stream, arrays are not faster than running ahead."""
_ROUNDS = 8


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
    loads: bool = False,
) -> Result:
    """Time a plan on a machine; with ``inputs`` (also as ``data=``) compute its outputs too.

    The machine's own engines and control path do the work, or what ``timing`` says: with the ``timing`` of a
    prediction (a `Library`) a collective takes the time of library kernels, where the machine has a protocol
    for them; ``launch=False`` leaves the host's launch out, as captured graphs do.

    ``data=True`` asks for outputs of a plan without inputs, ``data=False`` for times alone.

    ``engine`` forces one of ``run-ahead``, ``arrays`` and ``bucket``; all give the same times. ``assume``
    gives values for integers that the plan reads from its data, where there is none. ``installed`` leaves
    out the install of the queues (`Session` does that once per unit). The faults of an enclosing
    ``with faults(...)`` apply. ``loads`` counts what links and engines do in the same run, so that
    `Result.links` and `Result.work_ps` need no recorded one.
    """
    require_plan(plan, "simulate")
    if engine is not None and engine not in ENGINES:
        raise TimingError(
            f"there is no evaluator '{engine}'", advice=did_you_mean(engine, ENGINES, what="evaluators")
        )
    if not isinstance(plan, Plan) or not isinstance(machine, (HDA, str)):
        raise TimingError(
            f"simulate takes a Plan and a machine, not {type(plan).__name__} and {type(machine).__name__}",
            advice='simulate(plan, machine="ahbm")',
        )
    hda = find_machine(machine) if isinstance(machine, str) else machine
    check_structure(plan)
    one_level(plan, "simulate")
    if isinstance(data, Mapping):
        inputs, data = data, True
    with_data = inputs is not None if data is None else data
    run, scalars, name, times = min(
        (
            _Run(plan, hda, option, current_faults(), engine, installed, loads).timed(
                inputs, with_data, assume, launch
            )
            for option in as_timing(timing).options(hda, plan.scale)
        ),
        key=lambda found: found[-1].end_ps,
    )
    order = SimpleNamespace(choices=times.choices)
    results = outputs(plan, inputs or {}, order) if with_data else None
    result = Result(run.plan, hda, name, times.end_ps, times.choices, results, lambda: run.recorded(scalars))
    result.timing = run.timing
    result.messages = times.messages
    result.loads = times.loads
    if wants_communication_trace():
        result.print_communication()
    return result


def _scalars(
    run: _Run, inputs: Mapping[str, Any] | None, with_data: bool, assume: Mapping[str, Any] | None
) -> Scalars:
    """Where the values of `ReadScalar` come from.

    What a receive-from-any takes may decide what is read, and what is read may decide the times: then both
    are repeated until they agree.
    """
    plan = run.plan
    if not reads_scalars(plan) or not with_data:
        return assumed(assume)
    scalars, seen = observed(plan, inputs or {}, None)
    if not has_any(plan):
        return scalars
    for _ in range(_ROUNDS):
        _, times = run.times(scalars)
        scalars, again = observed(plan, inputs or {}, SimpleNamespace(choices=times.choices))
        if again == seen:
            return scalars
        seen = again
    raise TimingError(
        f"plan '{plan.name}' does not settle: what it reads depends on the order of arrival and decides it",
        advice="read from a fixed member, or simulate with assume=",
    )


class _Run:
    """One plan on one machine under the faults that held when it was made."""

    def __init__(
        self,
        plan: Plan,
        hda: HDA,
        timing: Timing,
        faults: Faults,
        engine: str | None,
        installed: bool,
        loads: bool = False,
    ) -> None:
        self.plan = plan
        self.hda = hda
        self.timing = timing
        self.faults = faults
        self.engine = engine
        self.installed = installed
        self.loads = loads
        self.begin_ps = 0

    def machine(self) -> Resources:
        return Resources(
            self.hda,
            self.plan,
            self.faults,
            installed=self.installed,
            begin_ps=self.begin_ps,
            timing=self.timing,
        )

    def timed(
        self,
        inputs: Mapping[str, Any] | None,
        with_data: bool,
        assume: Mapping[str, Any] | None,
        launch: bool,
    ) -> tuple[_Run, Scalars, str, Times]:
        """The run with its times; what kernels of a collective spend before the first message included."""
        scalars = _scalars(self, inputs, with_data, assume)
        name, times = self.times(scalars)
        whole = self.timing.whole_ps(self.hda, self.plan.scale, times.end_ps, launch)
        self.begin_ps = max(0, whole - times.end_ps)
        times.end_ps = whole
        return self, scalars, name, times

    def times(self, scalars: Scalars) -> tuple[str, Times]:
        """The evaluator used and the times it found."""
        try:
            with _no_collector():
                name, program, times = self._evaluate(scalars)
            times.messages = messages_through(program.cohorts)
        except Odd as odd:
            explain(self.plan, scalars, odd)
            raise
        return name, times

    def _evaluate(self, scalars: Scalars) -> tuple[str, Program, Times]:
        if self.engine == "bucket":
            program, times = bucket(self.machine(), scalars)
            if not times.complete:
                # The oracle only notices that it is stuck; run-ahead also says who waits for whom.
                times = run_ahead(self.machine(), scalars, record=False)[1]
            return "bucket", program, _checked(times, self.plan)
        if self.engine == "arrays" or (self.engine is None and self._large()):
            try:
                return "arrays", *arrays(self.machine(), scalars)
            except NotRegular as reason:
                if self.engine == "arrays":
                    raise TimingError(
                        f"plan '{self.plan.name}' cannot be evaluated by arrays: {reason}",
                        advice="leave engine= out, or use engine='run-ahead'",
                    ) from None
        program, times = run_ahead(self.machine(), scalars, record=False)
        if self.loads:
            times.loads = count_loads(program, times)
        times.operations = []  # freed before the collector wakes up and looks at each of them
        return "run-ahead", program, _checked(times, self.plan)

    def recorded(self, scalars: Scalars) -> tuple[Program, Times]:
        with _no_collector():
            if self.engine == "bucket":
                return bucket(self.machine(), scalars)
            program, times = run_ahead(self.machine(), scalars, record=True)
        return program, _checked(times, self.plan)

    def _large(self) -> bool:
        return all(stream.unit_count() >= _SMALL for stream in self.plan.streams)


def _checked(times: Times, plan: Plan) -> Times:
    if times.stuck is None:
        return times
    graph = times.stuck
    first = (graph.cycle() or graph.waiters or (None,))[0]
    raise Deadlock(
        f"plan '{plan.name}' is deadlocked\n{graph.text()}",
        graph,
        advice=f"look at {first.source}" if first is not None and first.source else None,
    )


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of small tuples live until the end; looking for cycles among them doubles the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
