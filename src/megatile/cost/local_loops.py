"""Loops in which units only work: after a few iterations the rest is arithmetic, each unit at its own rate.

Such a loop never waits for another unit and never holds up issue, so its clocks are sums and maxima of each
other and of clocks that stand still. Three states, one period apart, decide: if the same clocks change in
both periods, and all clocks that depend on each other change by one amount in the second, then what stands
still did not decide any of them (it would have in the first period too), and every further period changes
them by that amount again. Blocks that a loop walks through are compared, and continued, as it walks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import constant, symbols
from megatile.cost.periods import pace_of
from megatile.plan.cohort import Cohort
from megatile.plan.model import Compute, Loop, Plan, statements
from megatile.plan.statements import regions_of
from megatile.plan.steady import Snapshot, advance, repeats, same_state, snapshot, works_only

if TYPE_CHECKING:
    from megatile.cost.timed_walk import TimedWalk

LONGEST = 4096
"""Loops whose state repeats only after so many iterations are walked."""
State = dict[Any, Any]


@dataclass
class LocalWatch:
    """One loop: its period, how it walks through tiles, which clocks belong together, what was seen."""

    period: int
    paces: dict[str, int]
    parts: dict[Any, int]
    count: int = 0
    next_look: int = 1
    since: int = 0
    states: list[State] = field(default_factory=list)
    names: Snapshot | None = None
    flows: Any = None


def local_watch(walk: TimedWalk, loop: Loop, trips: int) -> LocalWatch | None:
    """A watch if the loop only works, the same way in every iteration."""
    step, body = constant(loop.step), list(statements(loop.body))
    if step is None or not works_only(loop) or not repeats(loop):
        return None
    for statement in body:
        if isinstance(statement, Compute):
            work = statement.work
            if loop.index in symbols(work.flops) | symbols(work.bytes):
                return None
    period = lcm(1, *(tile.versions for tile in walk.plan.tiles))
    paces: dict[str, int] = {}
    for tile in walk.plan.tiles:
        pace, blocks = pace_of(walk, loop, tile, step), walk.hazards.grids[tile.name].blocks
        if pace is None:
            return None
        cycle = blocks // gcd(pace, blocks)
        if pace and 3 * lcm(period, cycle) < trips:
            period, pace = lcm(period, cycle), 0
        if pace:
            paces[tile.name] = pace
    if period > LONGEST:
        return None
    return LocalWatch(period, paces, _parts(walk.plan, body))


def _parts(plan: Plan, body: list[Any]) -> dict[Any, int]:
    """Engines and tiles that commands join have one number; those of different parts never meet."""
    tiles = {tile.name for tile in plan.tiles}
    part: dict[Any, int] = {}
    for statement in body:
        if not isinstance(statement, Compute):
            continue
        engine = "dma.0" if statement.engine == "dma" else statement.engine
        names = {region.tile for region in regions_of(statement)}
        # A name bound in the stream may mean any tile or slot.
        joined = [engine, *(names if names <= tiles else [*tiles, None])]
        numbers = {part[n] for n in joined if n in part}
        number = min(numbers, default=len(part))
        part.update(dict.fromkeys(joined, number))
        part.update({n: number for n, other in part.items() if other in numbers})
    return part


def skip_local(walk: TimedWalk, watch: LocalWatch, loop: Loop, cohort: Cohort, remaining: int) -> int:
    """Called after each iteration: how many iterations were skipped (mostly none)."""
    watch.count += 1
    if remaining <= 3 * watch.period:
        return 0
    if not watch.states and watch.count >= watch.next_look:
        watch.since = watch.count
    elif not watch.states or watch.count < watch.since + watch.period * len(watch.states):
        return 0
    watch.states.append(_state(walk, cohort))
    if len(watch.states) == 2:
        watch.names, watch.flows = snapshot({}, cohort), walk.flows.counts()
    if len(watch.states) < 3:
        return 0
    states, watch.states, watch.next_look = watch.states, [], 2 * watch.count
    assert watch.names is not None
    times = (remaining - 1) // watch.period
    rates = _rates(watch, states, times)
    if rates is None or not same_state(watch.names, {}, cohort):
        return 0
    _continue(walk, watch, cohort, states, rates, times)
    walk.flows.repeat(watch.flows, times)
    advance(loop, watch.names, {}, cohort, times, times * watch.period)
    return times * watch.period


def _state(walk: TimedWalk, cohort: Cohort) -> State:
    """The clocks of the cohort's units that a loop without communication can change."""
    kinds = ("free", "tile", "slot", "remote", "address", "log", "block", "buffer")
    return {key: array[cohort.units] for key, array in walk.clocks().items() if key[0] in kinds}


def _part_of(watch: LocalWatch, key: Any) -> int | None:
    name = key[1] if key[0] != "slot" else None
    return watch.parts.get(name)


def _rates(watch: LocalWatch, states: list[State], times: int) -> dict[int, Any] | None:
    """Picoseconds per period of every part, for each unit; None if they are not steady."""
    zero, one, two = states
    rates: dict[int, Any] = {}
    if any(set(s) != set(two) or any(s[k].shape != two[k].shape for k in s) for s in (zero, one)):
        return None
    for key, now in two.items():
        first, second = one[key] != zero[key], now != one[key]
        if not first.any() and not second.any():
            continue
        part = _part_of(watch, key)
        if part is None or key[0] in ("log", "block", "buffer"):
            return None
        moved = _moved(watch, key, first)
        if moved is None or not np.array_equal(moved, second):
            return None
        places = np.nonzero(second)
        grown = now[places] - one[key][_ahead(watch, key, places, -1)]
        if not _one_rate(rates, part, places[0], grown, len(now)):
            return None
    if not _free_ahead(watch, states, times):
        return None
    return {part: np.maximum(rate, 0) for part, rate in rates.items()}


def _one_rate(rates: dict[int, Any], part: int, units: Any, grown: Any, count: int) -> bool:
    """Note what the clocks of some units grew by; False if one of them grew by something else."""
    rate = rates.setdefault(part, np.full(count, -1, dtype=np.int64))
    new = rate[units] < 0
    rate[units[new]] = grown[new]
    return bool((grown > 0).all() and (rate[units] == grown).all())


def _moved(watch: LocalWatch, key: Any, changed: Any) -> Any:
    """Where blocks that changed lie one period later; None if the loop leaves the tile."""
    pace = watch.paces.get(key[1], 0) * watch.period if key[0] == "tile" else 0
    if not pace:
        return changed
    places = np.nonzero(changed)
    ahead = places[-1] + pace
    if len(ahead) and (ahead.min() < 0 or ahead.max() >= changed.shape[-1]):
        return None
    result = np.zeros_like(changed)
    index = (*places[:-1], ahead)
    result[index] = True
    return result


def _ahead(watch: LocalWatch, key: Any, places: Any, periods: Any) -> Any:
    """The same blocks some periods later (or, below zero, earlier)."""
    pace = watch.paces.get(key[1], 0) * watch.period if key[0] == "tile" else 0
    return (*places[:-1], places[-1] + pace * periods) if pace else places


def _free_ahead(watch: LocalWatch, states: list[State], times: int) -> bool:
    """Whether the blocks that a walking loop will come to are finished before anything of it can start."""
    one, two = states[1:]
    engines = [v for k, v in one.items() if k[0] == "free" and k[1] in watch.parts]
    floor = np.min(engines, axis=0) if engines else 0
    for key, now in two.items():
        if key[0] != "tile" or key[1] not in watch.paces or not (now != one[key]).any():
            continue
        pace, last = watch.paces[key[1]] * watch.period, now.shape[-1]
        units, versions, blocks = np.nonzero(now != one[key])
        low = np.clip(np.where(pace > 0, blocks + 1, blocks + pace * (times + 1)), 0, last)
        high = np.clip(np.where(pace > 0, blocks + pace * (times + 1) + 1, blocks), 0, last)
        for unit, version, a, b in zip(units, versions, low, high, strict=True):
            ahead = now[unit, version, a:b][now[unit, version, a:b] == one[key][unit, version, a:b]]
            if len(ahead) and ahead.max() > np.broadcast_to(floor, len(now))[unit]:
                return False
    return True


def _continue(
    walk: TimedWalk, watch: LocalWatch, cohort: Cohort, states: list[State], rates: dict[int, Any], times: int
) -> None:
    """Set every clock to what it is so many periods later."""
    one, two = states[1:]
    clocks = walk.clocks()
    for key, now in two.items():
        places = np.nonzero(now != one[key])
        part = _part_of(watch, key)
        if not len(places[0]) or part is None:
            continue
        units = cohort.units[places[0]]
        rate, values = rates[part][places[0]], now[places]
        if key[0] == "tile" and key[1] in watch.paces:
            for period in range(1, times + 1):
                ahead = _ahead(watch, key, places, period)
                index = (units, *ahead[1:])
                clocks[key][index] = values + rate * period
        else:
            index = (units, *places[1:])
            clocks[key][index] = values + rate * times
