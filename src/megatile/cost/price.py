"""``price(plan, machine)``: bounds on a plan's time, without simulating it.

    lower <= simulated <= upper, and lower == upper where nothing contends

All units of a stream are followed together (``plan.walk``), each with its own clock, as if every link, memory
and shared engine were free whenever it is asked for: that is the longest chain of dependencies, and the lower
bound (or the busiest resource, if that is longer). Along any chain, time is lost only while some shared
resource serves others, so the upper bound adds the busy time of every resource that more than one flow uses.

Blocks of a tile that are cut unevenly are taken not to conflict for the lower bound, and to conflict for the
upper one. Receive-from-any takes the message that would be there first. Contention may change which one that
is, so for the lower bound nothing waits for such a message, nor for a slot of such a queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from megatile.cost.timed_walk import Enough, TimedWalk, receives_any
from megatile.hda import HDA
from megatile.hda import machine as find_machine
from megatile.plan.model import Plan, require_plan
from megatile.plan.structure import check_structure, one_level
from megatile.timing.resources import Resources
from megatile.timing.view import Timing, as_timing


@dataclass(frozen=True)
class Price:
    """Bounds in picoseconds, and the resources that more than one flow uses."""

    lower_ps: int
    upper_ps: int
    shared: tuple[str, ...] = ()

    @property
    def lower_ns(self) -> float:
        return self.lower_ps / 1000

    @property
    def upper_ns(self) -> float:
        return self.upper_ps / 1000

    @property
    def exact(self) -> bool:
        return self.lower_ps == self.upper_ps


def price(
    plan: Plan,
    machine: HDA | str,
    *,
    assume: Mapping[str, int] | None = None,
    timing: Timing | None = None,
    launch: bool = True,
) -> Price:
    """Lower and upper bound of the plan's time on a machine (or the name of one).

    Values read by ``ReadScalar`` are taken to be ``assume[name]``, or their bound. ``timing`` and ``launch``
    are those of ``simulate``.
    """
    require_plan(plan, "price")
    check_structure(plan)
    one_level(plan, "price")
    found = find_machine(machine)
    options = as_timing(timing).options(found, plan.scale)
    each = [_price(plan, Resources(found, plan, timing=option), assume or {}, launch) for option in options]
    fastest = min(each, key=lambda p: p.upper_ps)
    return replace(fastest, lower_ps=min(p.lower_ps for p in each))


def _price(plan: Plan, machine: Resources, assume: Mapping[str, int], launch: bool) -> Price:
    unordered = receives_any(plan)
    low = TimedWalk(plan, machine, assume, careful=False, patient=not unordered)
    low.run()
    shortest, waiting, busiest, shared = low.end_ps(), *low.flows.contention()
    longest = shortest
    if low.hazards.uneven or unordered:
        high = TimedWalk(plan, machine, assume, careful=True)
        high.run()
        longest = high.end_ps()
    start = int(low.begin.min()) if plan.units else 0
    lower = machine.whole_ps(max(shortest, start + busiest), launch)
    return Price(lower, machine.whole_ps(longest + waiting, launch), shared)


def lower_bound(
    plan: Plan,
    machine: HDA | str,
    enough_ps: int | None = None,
    *,
    launch: bool = True,
    timing: Timing | None = None,
) -> int:
    """The lower bound alone. What is found to take longer than ``enough_ps`` is not followed to its end: the
    answer is then some time above that, and still a lower bound.
    """
    check_structure(plan)
    found = find_machine(machine)
    seen = [Resources(found, plan, timing=t) for t in as_timing(timing).options(found, plan.scale)]
    return min(machine.whole_ps(_lower_bound(plan, machine, enough_ps), launch) for machine in seen)


def _lower_bound(plan: Plan, machine: Resources, enough_ps: int | None) -> int:
    walk = TimedWalk(plan, machine, {}, careful=False, patient=not receives_any(plan))
    walk.enough_ps = None if enough_ps is None else enough_ps - machine.whole_ps(0, launch=False)
    try:
        walk.run()
    except Enough as reached:
        return reached.time_ps
    start = int(walk.begin.min()) if plan.units else 0
    return max(walk.end_ps(), start + walk.flows.contention()[1])
