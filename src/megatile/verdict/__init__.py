"""``result.verdict()``: what limits a simulated program, why, what to do next, and what that would bring.

Rules look for symptoms in a simulation's result; each remedy is timed again, as a changed program, Plan or
machine, and the verdict says which. It is added to `megatile.sim.Result` by ``megatile/__init__.py``.
"""

from megatile.verdict import (
    atomics,
    barriers,
    blocks,
    buffers,
    chains,
    communication,
    compute,
    devices,
    exchange,
    expressions,
    fusion,
    grid,
    imbalance,
    late,
    memory,
    narrow,
    needless,
    occupancy,
    phases,
    placing,
    reductions,
    serial,
    steps,
    traffic,
    unread,
)
from megatile.verdict.judgement import verdict
from megatile.verdict.model import Finding, Verdict
from megatile.verdict.study import RULES

MODULES = (
    atomics, barriers, blocks, buffers, chains, communication, compute, devices, exchange, expressions,
    fusion, grid, imbalance, late, memory, narrow, needless, occupancy, phases, placing, reductions, serial,
    steps, traffic, unread,
)  # fmt: skip
assert {rule.find.__module__ for rule in RULES} == {module.__name__ for module in MODULES}

__all__ = ["Finding", "Verdict", "verdict"]
