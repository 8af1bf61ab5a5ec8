"""``result.verdict()``: what limits a simulated program, why, what to do next, and what that would bring.

Rules look for symptoms in a simulation's result; each remedy is timed again, as a changed program, Plan or
machine, and the verdict says which. It is added to `megatile.sim.Result` by ``megatile/__init__.py``.
"""

from megatile.verdict import communication, compute, memory, occupancy
from megatile.verdict.model import Finding, Verdict
from megatile.verdict.study import RULES, verdict

assert all(
    rule.__module__ in (m.__name__ for m in (communication, compute, memory, occupancy)) for rule in RULES
)

__all__ = ["Finding", "Verdict", "verdict"]
