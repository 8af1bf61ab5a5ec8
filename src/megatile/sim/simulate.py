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
from megatile.plan.model import Plan, require_plan
from megatile.plan.structure import check_structure
from megatile.sim.data import Assumed
from megatile.sim.launches import Launch
from megatile.sim.machine_run import time_alone
from megatile.sim.result import Result, wants_communication_trace
from megatile.sim.simulation import MAX_RECORDS, engine_name
from megatile.timing.faults import current_faults
from megatile.timing.machine_timing import Timing, TimingError, as_timing


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

    Messages travel on the transports that the plan names (a library's kernel for the plan of a collective),
    on the machine's own engines where it names none; ``launch=False`` leaves the host's launch out, as
    captured graphs do. ``timing`` replaces the machine's engines by kernels that were measured (attention).

    ``data=True`` asks for outputs of a plan without inputs, ``data=False`` for times alone.

    ``engine`` is ``compiled`` or ``plain``; without it short runs are plain and long ones compiled, with the
    same times. ``assume`` gives values for integers that the plan reads from its data, where there is none.
    ``installed`` leaves out the install of the queues (`Session` does that once per unit). The faults of an
    enclosing ``with faults(...)`` apply. ``record=False`` keeps no times of single commands, which saves
    memory; a trace that is asked for later is then made by a second run. ``capacity=False`` also times plans
    that do not fit the machine's memories.

    A run that takes longer than ``max_seconds`` (wall clock) raises `TimeBudgetExceeded`, which says how far
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
        prepared = Launch(
            plan, hda, as_timing(timing), current_faults(), engine, installed, launch, scalars=Assumed(assume)
        )
        prepared.resources  # noqa: B018  (plans that need more units than there are are refused first)
        if capacity:
            check_memory(plan, hda)
        given = (inputs or {}) if with_data else None
        result = Result(time_alone(prepared, MAX_RECORDS if record else 0, inputs=given))
    if record and wants_communication_trace():
        result.print_communication()
    return result
