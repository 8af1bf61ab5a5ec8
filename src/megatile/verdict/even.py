"""A Plan as if all blocks had equal work: their loops go round as often as those of the mean block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from megatile.core.expr import Const, symbols
from megatile.plan import model as pm

MAX_ROUNDS = 64
"""Rounds of a loop around others in which these are counted."""
Env = dict[str, Any]


def evened(plan: pm.Plan, level: str) -> pm.Plan | None:
    """Return the Plan whose loops of unequal length, in the streams of a level, have the mean length of all
    units; None where there is no such loop, or data decide."""
    streams = []
    for stream in plan.streams:
        units = np.concatenate([np.arange(*run) for run in stream.units])
        body = _even(stream.body, [{"unit": units}]) if stream.level == level else stream.body
        streams.append(replace(stream, body=body))
    changed = replace(plan, streams=tuple(streams))
    return None if changed == plan else changed


def _even(body: tuple[Any, ...], around: list[Env]) -> tuple[Any, ...]:
    """Return statements with even loops; ``around`` has what is known in each round of the loops around."""
    made = []
    for s in body:
        if isinstance(s, pm.If):
            s = replace(s, body=_even(s.body, around), orelse=_even(s.orelse, around))
        elif isinstance(s, pm.Loop):
            lengths = [_length(s, env) for env in around]
            if all(length is not None for length in lengths):
                rounds = np.concatenate([np.atleast_1d(length) for length in lengths])
                most = int(rounds.max(initial=0))
                inner = [
                    env | {s.index: s.start.evaluate(env) + at * s.step.evaluate(env)}
                    for env in around
                    for at in range(min(most, max(1, MAX_ROUNDS // len(around))))
                ]
                stop = s.stop
                if rounds.size and rounds.min() < most:
                    stop = s.start + s.step * Const(max(1, round(float(rounds.mean()))))
                s = replace(s, body=_even(s.body, inner or around), stop=stop)
        made.append(s)
    return tuple(made)


def _length(loop: pm.Loop, env: Env) -> Any:
    """Return the trip counts of a loop, one per unit; None where they are unknown."""
    if any(symbols(e) - env.keys() for e in (loop.start, loop.stop, loop.step)):
        return None
    start, stop, step = (e.evaluate(env) for e in (loop.start, loop.stop, loop.step))
    return np.maximum(0, -((start - stop) // step))
