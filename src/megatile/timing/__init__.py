"""What commands cost on an HDA: the one table of durations, for the simulator and for the price.

`Resources` is an HDA as one plan sees it, `Fabric` and `Path` are paths through its networks, `Faults` what
is wrong with it, `Timing` who does the work: the machine's own engines, or kernels that were measured. What
messages cost on the transports of a Plan is in ``transports.py``.
Integer picoseconds throughout.
"""

from megatile.timing.engine_times import Dma
from megatile.timing.fabric import Fabric, Path, Stage
from megatile.timing.faults import FaultError, Faults, current_faults, faults
from megatile.timing.machine_timing import MachineTiming, Timing, TimingError, as_timing
from megatile.timing.resources import Resources

__all__ = [
    "Dma",
    "Fabric",
    "FaultError",
    "Faults",
    "MachineTiming",
    "Path",
    "Resources",
    "Stage",
    "Timing",
    "TimingError",
    "as_timing",
    "current_faults",
    "faults",
]
