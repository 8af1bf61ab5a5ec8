"""How much work it is to simulate a plan, estimated without running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from megatile.core.expr import Expr, symbols
from megatile.plan import model as pm

MOST = 3_000_000
"""Commands that a plan may have to be tried without being named; a few seconds."""
MOST_IN_ALL = 4_000_000
"""Of all plans that are tried for one choice."""

QUEUE = 100
"""What a queue with its path costs to set up, in commands."""
SAMPLES = 5
"""Rounds of a loop that are looked at."""


def effort(plan: pm.Plan) -> int:
    """About how many commands a plan issues, its queues counted as ``QUEUE`` commands each."""
    queues = sum(plan.units * channel.members for channel in plan.channels)
    total = 0.0
    for stream in plan.streams:
        units = np.concatenate([np.arange(*run) for run in stream.units])
        some = units[:: max(1, len(units) // 1024)]
        total += _count(stream.body, {"unit": some}, np.ones(len(some))).sum() * (len(units) / len(some))
    return int(total) + QUEUE * queues


def _count(body: tuple[Any, ...], known: Mapping[str, Any], active: Any) -> Any:
    """Commands that each unit issues; a condition or count that is not known beforehand is taken to hold."""
    found = np.zeros(len(active))
    for statement in body:
        if isinstance(statement, pm.Loop):
            ends = (statement.start, statement.stop, statement.step)
            start, stop, step = (_value(e, known, len(active)) for e in ends)
            if start is None or stop is None or step is None:
                found = found + 8 * _count(statement.body, known, active)
                continue
            trips = np.maximum(0, -(-(stop - start) // np.where(step == 0, 1, step)))
            rounds = np.unique(
                np.linspace(0, max(0, int(trips.max(initial=0)) - 1), SAMPLES).astype(np.int64)
            )
            inside = sum(
                _count(statement.body, {**known, statement.index: start + step * at}, active * (at < trips))
                for at in rounds.tolist()
            )
            found = found + inside * trips.max(initial=0) / len(rounds)
        elif isinstance(statement, pm.If):
            holds = _value(statement.condition, known, len(active))
            chosen = active if holds is None else active * (holds != 0)
            found = found + _count(statement.body, known, chosen)
            if holds is not None:
                found = found + _count(statement.orelse, known, active * (holds == 0))
        else:
            found = found + active
    return found


def _value(expression: Expr, known: Mapping[str, Any], units: int) -> Any:
    if not set(symbols(expression)) <= set(known):
        return None
    return np.broadcast_to(np.asarray(expression.evaluate(known), dtype=np.int64), (units,))
