"""Search over choices of a program, and over parameters of a machine, on any executor.

``tune(factory, {"block_M": [64, 128]}, machine=…)`` finds the fastest choice, exactly: what does not fit or
cannot be the fastest by its lower bound is left out, the rest is simulated, the winner's data are verified.
``sweep(plan, {"networks.nvlink.bandwidth": [...]}, machine=…)`` times one plan on many machines. Both run on
processes of their own or on any ``concurrent.futures.Executor``, and keep results in SQLite (``store=``).
"""

from megatile.core.public import PublicNames

NAMES = {"autotune": "megatile.tuning.decorator"}
"""What ``T`` has besides."""
_WHERE = {
    "Sweep": "megatile.tuning.machines",
    "TuneError": "megatile.tuning.work",
    "Tuned": "megatile.tuning.search",
    "sweep": "megatile.tuning.machines",
    "tune": "megatile.tuning.search",
    **NAMES,
}
__getattr__ = PublicNames(__name__, _WHERE)
