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


class RunAlone(Run):
    """A run of a plan that has the machine for itself, so that it can be repeated."""

    def run(self, records: int, operands: bool = False, inputs: Mapping[str, Any] | None = None) -> None:
        """Only what the plan's own units share has to be waited for, and what was recorded stays where it
        is."""
        count = commands(self.plan)
        # What a receive-from-any took is found in the records.
        most = EVERYTHING if ReceiveAny in self.plan.kinds else records if count <= records else 0
        operands |= count <= MAX_OPERANDS
        simulation = Simulation(record=most, engine=self.engine, contended=self.contended, operands=operands)
        machine = RunningMachine(self.hda, engine=self.engine, simulation=simulation)
        try:
            launch = machine.start(
                self.resources, inputs=inputs, scalars=self.scalars, turns=False, control=self.launch
            )
            found = machine.wait(launch)
        finally:
            machine.release()
        self.outputs, self.record = found.outputs, None
        self.messages, self.choices = found.messages, found.choices
        self.timed_by = self.timed_by or found.timed_by
        self.end_ps, self.begin_ps, self.scalars = found.time_ps, found.begin_ps, launch._scalars
        self.simulation = None if launch._launched is None else simulation
        self.launched = launch._launched
