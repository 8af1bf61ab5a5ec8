"""Proof, on the Plan, that every result element is the reduction of every rank's contribution exactly once.

The plan is read over the integers modulo 2**64 instead of its dtype: every reduction becomes an addition,
every tile an ``i64`` tile, and every input element gets its own random number. What comes out is then the sum
of those numbers, each as often as the plan used it, so it equals the expected sum only if each contribution
arrived exactly once at its right place (a coincidence has probability 2**-64 per element). Where it differs,
ranks are sent through one at a time to count who was used how often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatile.collectives.job import REDUCING, CollectiveError, Job
from megatile.collectives.reference import expected, result_of
from megatile.core.arguments import no_none
from megatile.core.dtypes import itemsize
from megatile.core.expr import expr
from megatile.core.operations import REDUCTIONS
from megatile.plan.execute import execute
from megatile.plan.model import (
    Channel,
    Collective,
    Compute,
    Plan,
    Receive,
    ReceiveAny,
    Send,
    Statement,
    Stream,
    Work,
)
from megatile.plan.statements import rewritten

_ADDITIONS = set(REDUCTIONS.values())


@dataclass(frozen=True)
class Provenance:
    """A proof's outcome: how many result elements were traced back to how many contributions."""

    elements: int
    contributions: int


@no_none
def prove(plan: Plan, job: Job, seed: int = 0) -> Provenance:
    """Raise a ``CollectiveError`` that names the wrong contributions, or say how much was proved."""
    if job.operation == "barrier":
        return Provenance(0, 0)
    traced = over_integers(plan)
    judge = replace(job, dtype="i64", reduction="sum")
    shape, _ = job.shapes
    assert shape is not None
    random = np.random.default_rng(seed)
    numbers = random.integers(-(2**63), 2**63 - 1, (job.ranks, *shape), dtype=np.int64)
    outputs = _run(traced, job, numbers)
    elements = 0
    for rank, right in enumerate(expected(judge, list(numbers))):
        if right is None:
            continue
        found = np.asarray(result_of(judge, outputs, rank))
        elements += right.size
        if not np.array_equal(found, right):
            raise CollectiveError(_diagnosis(traced, judge, rank, found, right))
    each = job.ranks if job.operation in REDUCING else 1
    return Provenance(elements, elements * each)


def _run(plan: Plan, job: Job, numbers: Any) -> Any:
    with np.errstate(over="ignore"):
        found = execute(plan, {"x": numbers}, races=False)
    name = "x" if job.in_place else "y"
    if name not in found:
        raise CollectiveError(f"{plan.name}: there is no result '{name}'")
    return found[name]


def _diagnosis(plan: Plan, job: Job, rank: int, found: Any, right: Any) -> str:
    """Return who contributed how often to the first wrong element."""
    element = int(np.flatnonzero(found != right)[0])
    shape, _ = job.shapes
    assert shape is not None
    if job.operation not in REDUCING:
        return f"{plan.name}: element {element} of rank {rank}'s result does not come from where it should"
    wrong = []
    for source in range(job.ranks):
        ones = np.zeros((job.ranks, *shape), dtype=np.int64)
        ones[source] = 1
        times = int(np.asarray(result_of(job, _run(plan, job, ones), rank))[element])
        if times != 1:
            wrong.append(f"rank {source} {times} times")
    who = ", ".join(wrong[:8]) or "contributions of other elements"
    return f"{plan.name}: element {element} of rank {rank}'s result holds {who}"


def over_integers(plan: Plan) -> Plan:
    """Return the plan with every tile of ``i64`` and every reduction an addition; averages are left as
    sums."""
    narrow = min((itemsize(t.dtype) for t in plan.tiles), default=8)
    return replace(
        plan,
        tiles=tuple(replace(t, dtype="i64") for t in plan.tiles),
        channels=tuple(_wide(c, narrow) for c in plan.channels),
        streams=tuple(Stream(s.units, rewritten(s.body, _statement)) for s in plan.streams),
    )


def _wide(channel: Channel, narrow: int) -> Channel:
    return replace(channel, slot_bytes=-(-channel.slot_bytes * 8 // narrow), offset=None)


def _statement(statement: Statement) -> Statement | None:
    match statement:
        case Compute() if statement.operation == "div":
            return None
        case Compute() if statement.operation in _ADDITIONS:
            return replace(statement, operation="add", work=_work(statement.work))
        case Compute() | Send():
            return replace(statement, work=_work(statement.work))
        case Receive() | ReceiveAny():
            return replace(statement, dtype="i64", work=_work(statement.work))
        case Collective():
            return replace(statement, reduction="sum", work=_work(statement.work))
    return statement


def _work(work: Work) -> Work:
    return Work(work.flops, work.bytes * expr(8) // itemsize(work.dtype), "i64")
