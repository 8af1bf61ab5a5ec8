"""One launch that has a machine for itself, as `simulate` times it and traces repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatile.plan.model import ReceiveAny
from megatile.sim.result import Run
from megatile.sim.running import RunningMachine
from megatile.sim.simulation import EVERYTHING, Simulation, commands

MAX_OPERANDS = 1 << 16
"""Commands up to which it is recorded at once what each of them touches."""


def run_alone(run: Run, records: int, operands: bool, inputs: Mapping[str, Any] | None) -> None:
    """Run a plan alone: only what its own units share has to be waited for, and what was recorded stays where
    it is."""
    count = commands(run.plan)
    # What a receive-from-any took is found in the records.
    most = EVERYTHING if ReceiveAny in run.plan.kinds else records if count <= records else 0
    operands |= count <= MAX_OPERANDS
    simulation = Simulation(record=most, engine=run.engine, contended=run.contended, operands=operands)
    machine = RunningMachine(run.hda, engine=run.engine, simulation=simulation)
    try:
        launch = machine.start(
            run.resources, inputs=inputs, scalars=run.scalars, turns=False, control=run.launch
        )
        found = machine.wait(launch)
    finally:
        machine.release()
    run.outputs, run.record, run.messages, run.choices = found.outputs, None, found.messages, found.choices
    run.timed_by = run.timed_by or found.timed_by
    run.end_ps, run.begin_ps, run.scalars = found.time_ps, found.begin_ps, launch._scalars
    run.simulation = None if launch._launched is None else simulation
    run.launched = launch._launched
