"""Time: one engine, faults, what a run found out,
and sessions of several launches."""

from megatile.core.limits import TimeBudgetExceeded
from megatile.sim.deadlock import Deadlock
from megatile.sim.install import InstallError
from megatile.sim.launches import Launch, SessionError
from megatile.sim.result import Result
from megatile.sim.session import Session
from megatile.sim.simulate import simulate
from megatile.sim.simulation import ENGINES
from megatile.sim.workers import Worker
from megatile.timing.faults import FaultError, Faults, faults
from megatile.timing.machine_timing import TimingError

__all__ = [
    "ENGINES",
    "Deadlock",
    "FaultError",
    "Faults",
    "InstallError",
    "Launch",
    "Result",
    "Session",
    "SessionError",
    "TimeBudgetExceeded",
    "TimingError",
    "Worker",
    "faults",
    "simulate",
]
