"""Time: three evaluators with one result, the machine model they share, faults, and what a run found out."""

from megatile.sim.faults import FaultError, Faults, faults
from megatile.sim.machine import SimulationError
from megatile.sim.result import Result
from megatile.sim.simulate import ENGINES, Deadlock, IpcqDeadlock, simulate

__all__ = [
    "ENGINES",
    "Deadlock",
    "FaultError",
    "Faults",
    "IpcqDeadlock",
    "Result",
    "SimulationError",
    "faults",
    "simulate",
]
