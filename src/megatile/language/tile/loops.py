"""Loops of the tile language."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.expr import Symbol
from megatile.core.frames import caller
from megatile.ir import nodes as n
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.tiles import ACTIVE

MAX_WHILE_ITERATIONS = 1 << 20
"""Turns of a ``while`` without a bound of its own."""


class Bounded(Value):
    """The condition of a ``while``, with the turns it may take at most."""

    __slots__ = ("most",)

    def __init__(self, condition: Any, most: int):
        super().__init__(as_expr(condition))
        self.most = most


def bounded(condition: Any, most: int) -> Any:
    """``while T.bounded(x[0] < n, 64):`` takes at most 64 turns; one more is an error of the run."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ProgramError(f"T.bounded with most={most!r}", advice="give a whole number from 1")
    return Bounded(condition, most) if isinstance(condition, Value) else condition


@dataclass
class SerialRange:
    """A loop that stays a loop in the Program."""

    kind: str
    start: Any
    stop: Any
    step: Any = 1
    stages: int = 1
    name: str = ""

    def __iter__(self) -> Any:
        if ACTIVE.get() is not None and current().argument is not None:
            return self._recorded()
        raise ProgramError(
            f"a T.{self.kind} loop outside a kernel",
            place=caller(),
            advice="write it in a 'for' of a function under @T.program",
        )

    def _recorded(self) -> Iterator[Value]:
        """Python runs the body once."""
        builder = current()
        builder.open_implied()
        name = builder.fresh(self.name or "i")
        start, stop, step = (as_expr(bound) for bound in (self.start, self.stop, self.step))
        fields = {"kind": self.kind, "var": name, "start": start, "stop": stop, "step": step}
        with builder.inside(n.Loop, name, **fields, stages=self.stages):
            yield Value(Symbol(name))


@dataclass
class ParallelRange:
    """Elementwise iterations."""

    extents: tuple[Any, ...]
    names: tuple[str, ...]

    def __iter__(self) -> Any:
        if ACTIVE.get() is not None and current().argument is not None:
            return self._recorded()
        raise ProgramError(
            "T.Parallel outside a kernel", place=caller(), advice="write it in a 'for' under @T.program"
        )

    def _recorded(self) -> Iterator[Any]:
        builder = current()
        builder.open_implied()
        names = tuple(builder.fresh(name) for name in self.names)
        extents = tuple(as_expr(extent) for extent in self.extents)
        with builder.inside(n.Parallel, *names, vars=names, extents=extents):
            builder.parallel = list(names)
            items = tuple(Value(Symbol(name)) for name in names)
            yield items[0] if len(items) == 1 else items
            builder.parallel = []


def _refuse_fractions(numbers: tuple[Any, ...]) -> None:
    for number in numbers:
        if isinstance(number, (float, np.floating)):
            raise ProgramError(
                f"a loop counts in whole numbers, not to {number}", advice="write n // m, or T.ceildiv(n, m)"
            )


def _bounds(args: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    if not 1 <= len(args) <= 3:
        raise ProgramError(
            f"a loop takes (stop), (start, stop) or (start, stop, step), not {len(args)} numbers",
            advice="T.serial(n) counts from 0 to n - 1",
        )
    _refuse_fractions(args)
    start, stop = (0, args[0]) if len(args) == 1 else args[:2]
    step = args[2] if len(args) == 3 else 1
    if isinstance(step, int) and step == 0:
        raise ProgramError("a loop with step 0 never ends", advice="give a step of at least 1")
    return start, stop, step


@no_none
def serial(*bounds: Any) -> SerialRange:
    """``for k in T.serial(n)``: one iteration after the other."""
    return SerialRange("serial", *_bounds(bounds), name="k")


@no_none
def unroll(*bounds: Any) -> SerialRange:
    """As ``serial``; targets write the iterations out."""
    return SerialRange("unroll", *_bounds(bounds), name="u")


@no_none
def vectorized(*bounds: Any) -> SerialRange:
    """As ``serial``; targets use vector instructions."""
    return SerialRange("vectorized", *_bounds(bounds), name="v")


@no_none
def Pipelined(*bounds: Any, num_stages: int = 2) -> SerialRange:
    """As ``serial``; copies of later iterations overlap the work of earlier ones, ``num_stages`` deep."""
    if not isinstance(num_stages, int) or num_stages < 0:
        raise ProgramError(f"num_stages={num_stages!r}", advice="give a whole number, 1 for no overlap")
    return SerialRange("pipelined", *_bounds(bounds), stages=max(num_stages, 1), name="k")


class PersistentRange:
    """Tiles ``rank, rank + units, …`` of a domain of several dimensions, as coordinates."""

    def __init__(self, domain: tuple[Any, ...], units: Any, rank: Any):
        self.domain, self.units, self.rank = domain, units, rank

    def flat(self) -> SerialRange:
        """Return the loop over the tiles' numbers, rows first."""
        return Persistent(reduce(operator.mul, self.domain), self.units, self.rank)

    def coordinates(self, number: Any) -> tuple[Any, ...]:
        """Return the indices of the tile with a number."""
        found = []
        for extent in reversed(self.domain):
            found.append(number % extent)
            number = number // extent
        return tuple(reversed(found))


@no_none
def Persistent(total: Any, units: Any, rank: Any) -> Any:
    """Tiles ``rank, rank + units, ...`` below ``total``: a block that stays and takes tile after tile.

    ``for i, j in T.Persistent((m, n), units, rank)`` counts tiles of several dimensions, rows first.
    """
    if isinstance(total, (tuple, list)):
        _refuse_fractions((*total, units, rank))
        return PersistentRange(tuple(total), units, rank)
    _refuse_fractions((total, units, rank))
    return SerialRange("persistent", rank, total, units, name="tile")


@no_none
def Parallel(*extents: Any) -> ParallelRange:
    """``for i, j in T.Parallel(m, n)``: elementwise code, all iterations at once."""
    if not extents:
        raise ProgramError("T.Parallel needs at least one extent", advice="T.Parallel(m, n)")
    _refuse_fractions(extents)
    names = ("i", "j", "l", "m") if len(extents) <= 4 else tuple(f"i{d}" for d in range(len(extents)))
    return ParallelRange(tuple(extents), names[: len(extents)])
