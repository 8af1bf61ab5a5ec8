"""Numbers that depend on rank and step, written as short expressions.

A schedule is data: for every rank and step it names peers, rows and columns. In a Plan all ranks share one
stream, so these numbers must become expressions of the unit and the loop index. ``shortest`` tries *keys*
(the step, the rank, the chunk's source …) from simple to general and takes the first that decides them:

>>> from megatile.core.expr import unit
>>> key = Key(unit, np.arange(4)[:, None])
>>> str(shortest(np.array([[1], [2], [3], [0]]), [key]))
'(unit + 1) % 4'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.core.expr import Const, Expr, select, table

Array = Any


@dataclass(frozen=True, eq=False)
class Key:
    """An expression and its values, [ranks, steps] (one of the extents may be 1); values are not negative."""

    expression: Expr
    values: Array


def shortest(numbers: Array, keys: Sequence[Key], where: Array | None = None) -> Expr:
    """Return an expression with these values [ranks, steps], by the first key on which they depend alone.

    ``where`` says which of them matter; the expression may have any value elsewhere.
    """
    numbers = np.asarray(numbers, dtype=np.int64)
    chosen = np.ones(numbers.shape, dtype=bool) if where is None else np.broadcast_to(where, numbers.shape)
    wanted = numbers[chosen]
    if not wanted.size or (wanted == wanted[0]).all():
        return Const(int(wanted[0]) if wanted.size else 0)
    for key in keys:
        at = np.broadcast_to(key.values, numbers.shape)
        found = _by_key(wanted, at[chosen], key.expression)
        if found is not None:
            return found
    raise AssertionError("the last key must tell all ranks and steps apart")


def _by_key(wanted: Array, at: Array, of: Expr) -> Expr | None:
    known = np.zeros(int(at.max()) + 1, dtype=bool)
    entries = np.full(len(known), int(wanted[0]), dtype=np.int64)
    entries[at] = wanted
    known[at] = True
    return _function(entries, known, of) if (entries[at] == wanted).all() else None


def _function(entries: Array, known: Array, of: Expr) -> Expr:
    """Return the table, or arithmetic that has the same values wherever the key occurs."""
    numbers, count = np.arange(len(entries)), len(entries)

    def agrees(values: Array) -> bool:
        return bool((values == entries)[known].all())

    first = int(np.argmax(known))
    shift = int(entries[first]) - first
    if agrees(numbers + shift):
        return of + shift
    if count == 2:
        return select(of, int(entries[1]), int(entries[0]))
    if known.all() and agrees((numbers + shift) % count):
        return (of + shift % count) % count
    if first + 1 < count and known[first + 1]:
        slope = int(entries[first + 1] - entries[first])
        if agrees(entries[first] + slope * (numbers - first)):
            return of * slope + int(entries[first] - slope * first)
    return table(entries.tolist(), of)
