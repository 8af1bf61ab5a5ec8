"""The interpreter: hierarchical SPMD on NumPy, the definition of the tile language."""

from megatile.targets.interpret.run import RunResult, run

__all__ = ["RunResult", "run"]
