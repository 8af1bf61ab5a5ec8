"""Time: three evaluators with one result, the machine model they share, faults, and what a run found out."""

from megatile.plan.timing.faults import FaultError, Faults, faults
from megatile.plan.timing.machine import TimingError
from megatile.sim.result import Result
from megatile.sim.simulate import ENGINES, Deadlock, simulate

__all__ = [
    "ENGINES",
    "Deadlock",
    "FaultError",
    "Faults",
    "Result",
    "TimingError",
    "faults",
    "simulate",
]
