"""What was recorded of a launch, which is repeated alone where nothing was."""

from __future__ import annotations

from megatile.sim.launches import Launch
from megatile.sim.machine_run import time_alone
from megatile.sim.record import Record
from megatile.sim.simulation import EVERYTHING
from megatile.timing.machine_timing import TimingError


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
        known, launch.simulation, launch.engine_rows = again.simulation, again.simulation, again.engine_rows
    assert known is not None
    assert launch.engine_rows is not None
    if not known.complete_record:
        raise known.arena.no_room("records")
    launch.record = Record(known, launch.engine_rows)
    return launch.record
