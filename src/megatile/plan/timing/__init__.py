"""What commands cost on an HDA: the one table of durations, for the simulator and for the price.

`Machine` is an HDA as one plan sees it, `Fabric` and `Path` are ways through its networks, `Faults` what is
wrong with it. Integer picoseconds throughout.
"""

from megatile.plan.timing.fabric import Fabric, Path, Stage, serialise_ps
from megatile.plan.timing.faults import FaultError, Faults, current_faults, faults
from megatile.plan.timing.machine import Dma, Machine, TimingError

__all__ = [
    "Dma",
    "Fabric",
    "FaultError",
    "Faults",
    "Machine",
    "Path",
    "Stage",
    "TimingError",
    "current_faults",
    "faults",
    "serialise_ps",
]
