"""What commands cost on an HDA: the one table of durations, for the simulator and for the price.

`Resources` is an HDA as one plan sees it, `Fabric` and `Path` are ways through its networks, `Faults` what is
wrong with it. Integer picoseconds throughout.
"""

from megatile.timing.fabric import Fabric, Path, Stage, serialise_ps
from megatile.timing.faults import FaultError, Faults, current_faults, faults
from megatile.timing.resources import Dma, Resources, TimingError

__all__ = [
    "Dma",
    "Fabric",
    "FaultError",
    "Faults",
    "Path",
    "Resources",
    "Stage",
    "TimingError",
    "current_faults",
    "faults",
    "serialise_ps",
]
