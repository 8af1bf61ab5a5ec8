"""Faults around a simulation: links that are down or slow, jitter, stragglers.

    with faults(slow_link={("gpu:0", "gpu:1"): 4.0}, straggler={3: 2.0}, jitter=7):
        r = simulate(plan, machine="dgx-h100")

Results stay right, only times change; where no route is left, an error says what cannot be reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from typing import Any

from megatile.core.errors import MegatileError
from megatile.hda import HDA
from megatile.hda.routing import Link

JITTER = 0.1
"""The largest delay that jitter adds, as a share of a transfer's own time."""


class FaultError(MegatileError, ValueError):
    """A fault that names no link or unit of the machine, or a factor that makes no sense."""


@dataclass(frozen=True)
class Faults:
    """What is wrong with the machine. A pair of units means every link on the route from one to the other."""

    link_down: tuple[Any, ...] = ()
    slow_link: tuple[tuple[Any, float], ...] = ()
    jitter: int | None = None
    straggler: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for what, factor in (*self.slow_link, *self.straggler):
            if not isinstance(factor, (int, float)) or not isfinite(factor):
                raise FaultError(
                    f"fault on {what}: the factor {factor!r} is not a number",
                    advice="use link_down for a link that carries nothing",
                )
            if factor < 1:
                raise FaultError(f"fault on {what}: factor {factor} would make it faster", advice="use >= 1")

        for unit, _ in self.straggler:
            if not isinstance(unit, int) or unit < 0:
                raise FaultError(
                    f"straggler {unit!r} is not a unit of a plan", advice="write its number: {3: 2.0}"
                )
        if self.jitter is not None and not isinstance(self.jitter, int):
            raise FaultError(f"jitter={self.jitter!r} is not a seed", advice="use a whole number")

    def __bool__(self) -> bool:
        return bool(self.link_down or self.slow_link or self.straggler or self.jitter is not None)

    def links_down(self, hda: HDA) -> frozenset[Link]:
        return frozenset(link for what in self.link_down for link in _links(hda, what))

    def links_slow(self, hda: HDA) -> dict[Link, float]:
        return {link: factor for what, factor in self.slow_link for link in _links(hda, what)}

    def slower(self, unit: int, duration_ps: int) -> int:
        """Return the duration of a command on a unit that may be a straggler."""
        for slow, factor in self.straggler:
            if slow == unit:
                duration_ps = round(duration_ps * factor)
        return duration_ps

    def delay_ps(self, flow: int, number: int, duration_ps: int) -> int:
        """Return the jitter of one transfer: a fixed function of seed, flow and message number."""
        if self.jitter is None:
            return 0
        share = _mix(self.jitter * 0x9E3779B97F4A7C15 + flow * 0xBF58476D1CE4E5B9 + number) / 2**64
        return int(duration_ps * JITTER * share)


def _mix(x: int) -> int:
    """splitmix64: spreads neighbouring numbers over the whole range."""
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def _links(hda: HDA, what: Any) -> Iterable[Link]:
    """Return the links that a fault names: a `Link`, or a pair of units."""
    if isinstance(what, Link):
        network = next((n for n in hda.networks if n.name == what.network), None)
        if network is None or not 0 <= what.number < network.topology.link_count:
            raise FaultError(f"{what} is not a link of machine '{hda.name}'")
        return [what]
    if isinstance(what, tuple) and len(what) == 2:
        links = list(hda.route(what[0], what[1]).hops())
        if not links:
            raise FaultError(f"there is no link between {what[0]} and {what[1]}")
        return links
    raise FaultError(f"{what!r} names no link", advice='write a pair of units: ("gpu:0", "gpu:1")')


_CURRENT: ContextVar[Faults | None] = ContextVar("megatile_faults", default=None)


NO_FAULTS = Faults()


def current_faults() -> Faults:
    """Return the faults of the enclosing ``with faults(...)``, or none."""
    return _CURRENT.get() or NO_FAULTS


@contextmanager
def faults(
    *,
    link_down: Iterable[Any] = (),
    slow_link: Mapping[Any, float] | None = None,
    jitter: int | None = None,
    straggler: Mapping[int, float] | None = None,
) -> Iterator[Faults]:
    """Everything simulated inside sees these faults (they do not add up with an outer ``faults``)."""
    found = Faults(
        tuple(link_down), tuple((slow_link or {}).items()), jitter, tuple((straggler or {}).items())
    )
    token = _CURRENT.set(found)
    try:
        yield found
    finally:
        _CURRENT.reset(token)
