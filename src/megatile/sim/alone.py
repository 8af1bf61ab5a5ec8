"""One launch that has a machine for itself, as `simulate` times it and traces repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatile.plan.counts import command_count
from megatile.plan.model import ReceiveAny
from megatile.sim.launches import Launch
from megatile.sim.machine_run import run_alone
from megatile.sim.record import Record
from megatile.sim.simulation import EVERYTHING, Simulation
from megatile.timing.machine_timing import TimingError

MAX_OPERANDS = 1 << 16
"""Commands up to which it is recorded at once what each of them touches."""


def time_alone(
    launch: Launch, records: int, operands: bool = False, inputs: Mapping[str, Any] | None = None
) -> Launch:
    """Run a prepared launch on a machine of its own, recording at most so many commands; what they touch only
    if there are few, or with ``operands``. With ``inputs`` it computes its outputs too."""
    count = command_count(launch.plan)
    # What a receive-from-any took is found in the records.
    most = EVERYTHING if ReceiveAny in launch.plan.kinds else records if count <= records else 0
    operands |= count <= MAX_OPERANDS
    # Only what the plan's own units share has to be waited for.
    tensors = None if launch.caches is None else launch.caches[0]
    simulation = Simulation(
        record=most, engine=launch.engine, contended=launch.contended, operands=operands, tensors=tensors
    )
    run_alone(launch, simulation, inputs)
    return launch


def recorded(launch: Launch, operands: bool = False) -> Record:
    """Return what was recorded of a launch; where nothing was, or it was too much, it is repeated alone."""
    if launch.like is not None:
        return recorded(launch.like, operands)
    if launch.record is not None and launch.record.operands >= operands:
        return launch.record
    if not launch.repeatable:
        raise TimingError(
            f"the launch of '{launch.name}' was not recorded", advice="Session(…, record=…) keeps more"
        )
    known = launch.simulation
    if known is None or not known.complete_record or not known.most_records or known.operands < operands:
        again = time_alone(launch.alone(), EVERYTHING, operands)
        known, launch.simulation, launch.rows = again.simulation, again.simulation, again.rows
    assert known is not None
    assert launch.rows is not None
    if not known.complete_record:
        raise known.arena.no_room("records")
    launch.record = Record(known, launch.rows)
    return launch.record
