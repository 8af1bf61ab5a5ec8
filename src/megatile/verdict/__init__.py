"""``result.verdict()``: what limits a simulated program, why, what to do next, and what that would bring.

Rules look for symptoms in a simulation's result; each remedy is timed again, as a changed program, Plan or
machine, and the verdict says which. It is added to `megatile.sim.Result` by ``megatile/__init__.py``.
"""

from megatile.verdict import (
    communication,
    compute,
    devices,
    exchange,
    memory,
    narrow,
    needless,
    occupancy,
    placing,
    serial,
    steps,
    turns,
)
from megatile.verdict.model import Finding, Verdict
from megatile.verdict.study import RULES, verdict

MODULES = (
    needless, placing, serial, narrow, compute, devices, exchange, turns, steps, memory, communication,
    occupancy,
)  # fmt: skip
"""In the order in which they are tried: the searches that take longest last."""
assert {rule.__module__ for rule in RULES} == {module.__name__ for module in MODULES}
RULES_IN_ORDER = sorted(
    RULES.items(), key=lambda item: [m.__name__ for m in MODULES].index(item[0].__module__)
)
RULES.clear()
RULES.update(RULES_IN_ORDER)

__all__ = ["Finding", "Verdict", "verdict"]
