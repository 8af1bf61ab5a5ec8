"""Schedules by name: a layout of the sequence, routes of the KV chunks, and how many ranks divide the heads.

>>> schedule = make_schedule("hamilton", 8)
>>> schedule.routes.chunks, schedule.routes.exchanges
(7, 7)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

from megatile.attention.schedules.pieces import Layout
from megatile.attention.schedules.routes import CycleRoutes, DirectRoutes, Routes
from megatile.collectives.decompositions import (
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
    partial_rings,
)
from megatile.core.cached import cached
from megatile.core.errors import MegatileError, did_you_mean


class ScheduleError(MegatileError, ValueError):
    """A schedule that does not exist or does not fit the ranks."""


@dataclass(frozen=True)
class Schedule:
    """A method to compute attention over a sequence that is divided over ranks.

    ``heads`` consecutive ranks exchange sequence for heads first (Ulysses); the ``routes`` run between such
    groups. ``full_layout`` and ``causal_layout`` name the division of the sequence without and with a causal
    mask.
    """

    name: str
    routes: Routes
    heads: int = 1
    full_layout: str = "contiguous"
    causal_layout: str = "zigzag"

    @property
    def ranks(self) -> int:
        return self.routes.ranks * self.heads

    def layout(self, causal: bool) -> Layout:
        """Return how the sequence is divided over all ranks."""
        name = self.causal_layout if causal else self.full_layout
        cycles = getattr(self.routes, "cycles", ()) if name == "cycles" else ()
        return Layout(name, self.ranks, self.heads, cycles, causal and name == "balanced")


@cached(most=256)
def make_schedule(name: str, ranks: int) -> Schedule:
    """Return the schedule called ``name`` for a number of ranks.

    Names: ``ring``, ``zigzag``, ``striped``, ``direct``, ``hamilton``, ``hamilton:k`` (k rings only),
    ``hamilton:mxu`` (u nodes of m ranks), ``ulysses``, ``ulysses:w+name`` (w ranks divide the heads, the rest
    follow ``name``), ``auto``.
    """
    if not isinstance(ranks, int) or ranks < 1:
        raise ScheduleError(f"a schedule needs at least one rank, got {ranks!r}")
    if not isinstance(name, str):
        raise ScheduleError(f"schedules are called by a name, got {name!r}", advice="for example 'hamilton'")
    base, colon, argument = name.strip().lower().partition(":")
    if base not in _BUILDERS:
        raise ScheduleError(f"there is no schedule '{name}'", advice=did_you_mean(base, _BUILDERS))
    if argument and base not in _FORMS:
        raise ScheduleError(f"'{name}' takes no argument")
    if colon and not argument:
        raise ScheduleError(f"'{name}' is incomplete", advice=f"write {_FORMS.get(base, base)}")
    return _BUILDERS[base](name, ranks, argument)


def schedule_names() -> list[str]:
    """Return the names that :func:`make_schedule` knows, without arguments."""
    return list(_BUILDERS)


def cycle_schedule(name: str, cycles: list[list[int]], ranks: int) -> Schedule:
    """Return a schedule over given cycles."""
    return Schedule(name, CycleRoutes.along(cycles, ranks))


def _one_ring(ranks: int) -> CycleRoutes:
    return CycleRoutes.along([range(ranks)] if ranks > 1 else [], ranks)


def _hamilton(name: str, ranks: int, argument: str) -> Schedule:
    m, u = (_number(x) for x in argument.partition("x")[::2])
    if m is not None and u is not None:
        if m * u != ranks:
            raise ScheduleError(f"'{name}' is for {m * u} ranks, the group has {ranks}")
        return cycle_schedule(f"hamilton:{m}x{u}", gen_hamilton_circle_two_nodes(ranks, u), ranks)
    rings = _number(argument)
    if rings is not None:
        if rings < 1:
            raise ScheduleError(f"'{name}' needs at least one ring")
        return cycle_schedule(f"hamilton:{rings}", partial_rings(ranks, rings), ranks)
    if argument:
        raise ScheduleError(f"'{name}' is unknown", advice=f"write {_FORMS['hamilton']}")
    return cycle_schedule("hamilton", gen_hamilton_circle(ranks), ranks)


def _ulysses(name: str, ranks: int, argument: str) -> Schedule:
    width, plus, inner = argument.partition("+")
    heads = _number(width) if argument else ranks
    if heads is None or (plus and not inner) or inner != inner.strip():
        raise ScheduleError(f"'{name}' is unknown", advice=f"write {_FORMS['ulysses']}")
    if heads < 1 or ranks % heads:
        divisors = [d for d in range(1, isqrt(ranks) + 1) if ranks % d == 0]
        known = sorted({*divisors, *(ranks // d for d in divisors)})
        raise ScheduleError(f"'{name}' cannot divide {ranks} ranks", advice=f"heads over one of {known}")
    outer = make_schedule(inner or "hamilton", ranks // heads)
    if outer.heads != 1 or inner.startswith("ulysses"):
        raise ScheduleError(f"'{name}' divides the heads twice")
    if heads == ranks:
        return Schedule("ulysses", _one_ring(1), heads=ranks, causal_layout="contiguous")
    full_name = f"ulysses:{heads}+{outer.name}"
    return Schedule(full_name, outer.routes, heads, outer.full_layout, outer.causal_layout)


def _number(text: str) -> int | None:
    """Return a number as it stands in a name, or None."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


_FORMS = {
    "hamilton": "hamilton, hamilton:3 or hamilton:4x2",
    "ulysses": "ulysses, ulysses:2 or ulysses:2+ring",
}
"""What may stand after a name."""
_BUILDERS: dict[str, Callable[[str, int, str], Schedule]] = {
    "ring": lambda _, n, __: Schedule("ring", _one_ring(n), causal_layout="contiguous"),
    "zigzag": lambda _, n, __: Schedule("zigzag", _one_ring(n)),
    "striped": lambda _, n, __: Schedule("striped", _one_ring(n), 1, "striped", "striped"),
    "direct": lambda _, n, __: Schedule("direct", DirectRoutes(n)),
    "hamilton": _hamilton,
    "ulysses": _ulysses,
    # On no link more bytes than a ring; the layouts of zigzag and direct.
    "auto": lambda _, n, __: _hamilton("hamilton", n, ""),
}
