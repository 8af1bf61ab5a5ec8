"""``price(plan, machine=…)``: bounds on a plan's time.

    lower <= simulated <= upper, and lower == upper where nothing contends

The engine runs the plan as if every link, memory and shared engine were free whenever it is asked for: the
longest chain of dependencies, and the lower bound (or the busiest resource, if that is longer). Along any
chain, time is lost only while some shared resource serves others, so the upper bound adds the busy time of
every resource that more than one flow uses. A receive-from-any takes what comes first, which contention may
change: then the busiest engine or resource bounds the time below, and all activities one after another above.
So it is where instances wait for slots: which slot one gets depends on who is ready first. Plans with many
such instances are bounded below by `floor`, without a run; the upper bound is found (and a deadlock reported)
when it is asked for. Caches have everything for the lower bound, and nothing for the upper one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr import constant
from megatile.core.limits import OutOfMemory, enough_memory
from megatile.core.quantities import format_time
from megatile.core.times import Shown
from megatile.cost.rounds import shortened
from megatile.cost.static_bound import floor
from megatile.cost.value_bounds import Undecided, extreme
from megatile.hda import HDA, machine as find_machine
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.model import Plan, require_plan
from megatile.plan.residency import copies, units_below
from megatile.plan.statements import reads_of, write_of
from megatile.plan.structure import check_structure
from megatile.sim import state as st
from megatile.sim.data import Assumed
from megatile.sim.instructions import READ_SCALAR, RECEIVE, RECEIVE_ANY, SEND, SIGNAL, WAIT, WORK
from megatile.sim.launches import Launch
from megatile.sim.machine_run import time_alone
from megatile.sim.record import Record
from megatile.sim.state import DMA, Answer, Queue, Recorded
from megatile.timing.caches import Cache
from megatile.timing.fabric import serialise_ps
from megatile.timing.machine_timing import Timing, as_timing

EVERYTHING = 1 << 40
"""Commands to record: more than any plan issues."""
RECORD_BYTES = 100
"""About as many for each command of a run that is recorded."""
LONG = 1 << 24
"""Commands from which on a lower bound alone looks for loops that repeat themselves."""
MANY_SPREAD = 1 << 14
"""Commands of a plan with spread tiles from which on the upper bound, with a route for each, is found when it
is asked for."""
MAX_INSTANCES_SIMULATED_FOR_BOUNDS = 64
"""Up to so many instances in turns, both bounds come from runs at once."""


@dataclass(frozen=True, repr=False)
class Price(Shown):
    """Bounds in picoseconds, and the resources that more than one flow uses."""

    lower_ps: int
    upper_ps: int
    shared: tuple[str, ...] = field(default_factory=tuple)

    def __getattr__(self, name: str) -> Any:
        """Of plans whose lower bound needs no run, the rest is found when it is asked for."""
        rest = self.__dict__.get("rest")
        if rest is None or name not in ("upper_ps", "shared"):
            raise AttributeError(name)
        found = rest()
        self.__dict__.update(upper_ps=max(found.upper_ps, self.lower_ps), shared=found.shared)
        return self.__dict__[name]

    @classmethod
    def bounded(cls, lower_ps: int, rest: Callable[[], Price]) -> Price:
        made = cls.__new__(cls)
        made.__dict__.update(lower_ps=lower_ps, rest=rest)
        return made

    def __repr__(self) -> str:
        lower, upper = format_time(self.lower_ps), self.__dict__.get("upper_ps")
        if upper is None:
            return f"Price(at least {lower})"  # the rest is found when it is asked for
        shared = f", {len(self.shared)} shared resources" if self.shared else ""
        return f"Price({lower} to {format_time(upper)}{shared})"

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
    assume: Mapping[str, Any] | None = None,
    timing: Timing | None = None,
    launch: bool = True,
) -> Price:
    """Lower and upper bound of the plan's time on a machine (or the name of one).

    Values read by ``ReadScalar`` are taken to be ``assume[name]`` (a number, or one per unit), or anything up
    to their bound: the lower
    bound then is that of the least work they allow and the upper one that of the most. Where they decide
    something else (a peer, say), an error asks for ``assume`` (programs with ``while`` have a lower bound all
    the same). ``timing`` and ``launch`` are those of
    ``simulate``.
    """
    runs = _runs(plan, machine, timing, launch)
    given = assume or {}

    def bounds() -> Price:
        with enough_memory(f"plan '{plan.name}' of {plan.units} units"):
            return _bounds()

    def _bounds() -> Price:
        if pm.ReadScalar not in plan.kinds:
            each = [_price(run, run, given) for run in runs]
        else:
            highs = _runs(extreme(plan, given, most=True), machine, timing, launch)
            try:
                lows = _runs(extreme(plan, given, most=False), machine, timing, launch)
                each = [_price(low, high, given) for low, high in zip(lows, highs, strict=True)]
            except Undecided:
                least = floor(plan, machine, launch=launch)
                each = [replace(_price(high, high, given), lower_ps=least) for high in highs]
        fastest = min(each, key=lambda p: p.upper_ps)
        return replace(fastest, lower_ps=min(p.lower_ps for p in each))

    if not plan.levels or timing is not None:
        return bounds()
    least = floor(plan, machine, launch=launch)
    many = any(tile.over for tile in plan.tiles) and command_count(plan) > MANY_SPREAD
    turns = many or _takes_turns(plan, find_machine(machine), MAX_INSTANCES_SIMULATED_FOR_BOUNDS)
    if turns and not {pm.ReceiveAny, pm.ReadScalar} & plan.kinds:
        return Price.bounded(least, bounds)
    try:
        found = bounds()
    except Undecided:  # the lower bound holds all the same; who asks for the upper one gets the reason
        return Price.bounded(least, bounds)
    return replace(found, lower_ps=max(found.lower_ps, least), upper_ps=max(found.upper_ps, least))


def lower_bound(plan: Plan, machine: HDA | str, *, launch: bool = True, timing: Timing | None = None) -> int:
    """Return the longest chain of dependencies alone: cheaper than `price`, and still a lower bound."""
    found = []
    for run in _runs(plan, machine, timing, launch):
        if pm.ReadScalar in plan.kinds:
            return floor(plan, machine, launch=launch)
        if _unordered(plan, find_machine(machine)):
            return price(plan, machine, launch=launch, timing=timing).lower_ps
        found.append(_chain_ps(run))
    return min(found)


def _chain_ps(run: Launch) -> int:
    """Return when a run ends in which nothing is shared; very long loops are run in part where that is
    enough."""
    for short in shortened(run.plan) if command_count(run.plan) > LONG else ():
        part = time_alone(replace(run, plan=short.plan), EVERYTHING)
        assert part.simulation is not None
        assert part.engine_rows is not None
        end = short.end_ps(part.simulation, part.engine_rows)
        if end is not None:
            return run.resources.whole_ps(end, run.control)
    return time_alone(run, 0).took_ps


def _runs(plan: Plan, machine: HDA | str, timing: Timing | None, launch: bool) -> list[Launch]:
    require_plan(plan, "price")
    if not isinstance(plan, Plan) or not isinstance(machine, (HDA, str)):
        raise MegatileError(
            f"price takes a Plan and a machine, not {type(plan).__name__} and {type(machine).__name__}",
            advice='price(plan, machine="ahbm")',
        )
    check_structure(plan)
    hda = find_machine(machine)
    return [Launch(plan, hda, as_timing(timing), control=launch, contended=False)]


def _blocks(tile: pm.Tile, region: pm.Region, brick: tuple[int, ...]) -> tuple[int, int]:
    """Return how many blocks of a tile a region may touch at most, and the bytes of each."""
    count = 1
    for axis, (extent, size) in enumerate(zip(tile.shape, brick, strict=True)):
        known = constant(region.shape[axis]) if len(region.shape) == len(brick) else None
        whole = -(-extent // size)
        count *= whole if known is None else min(whole, -(-known // size) + 1)
    return count, prod(brick) * itemsize(tile.dtype)


def _filling(tile: pm.Tile, region: pm.Region, brick: tuple[int, ...], caches: Iterable[Cache]) -> int:
    """Return how long the layers behind caches serve at most for a region of a tile."""
    blocks, size = _blocks(tile, region, brick)
    behind = [cache.behind for cache in caches]
    return sum(blocks * (serialise_ps(size, stage.bandwidth) + 1) + stage.latency_ps for stage in behind)


def _physical_memory() -> int:
    """Return the bytes of memory that this computer has, or 64 GB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 64 * 10**9


def _reading(assume: Mapping[str, Any]) -> Any:
    """Return values for `ReadScalar`: those that are assumed, else the greatest."""
    known = Assumed(assume)
    return lambda read, *asked: known(read, *asked) if read.name in assume else read.bound


def _unordered(plan: Plan, hda: HDA) -> bool:
    """Return whether contention may change what comes first, and with it the course of the plan."""
    return pm.ReceiveAny in plan.kinds or _takes_turns(plan, hda)


def _takes_turns(plan: Plan, hda: HDA, more_than: int = 0) -> bool:
    """Return whether instances wait for slots of others: more than so many, and more than are there at a
    time."""
    slotted = [x for x in plan.levels if x.slots is not None and plan.instances(x.name) > more_than]
    if not slotted:
        return False
    places = copies(plan, hda)

    def waits(level: pm.Level) -> bool:
        above = places[level.parent][0] if level.parent else np.zeros(1, np.int64)
        crowd = int(np.max(np.unique(above, return_counts=True)[1], initial=0))
        return crowd * level.count > units_below(hda, level, plan) * (level.slots or 0)

    return any(waits(level) for level in slotted)


def _price(least: Launch, run: Launch, assume: Mapping[str, int]) -> Price:
    """Return bounds of a plan that has the least to do in one run and the most in the other."""
    unordered = _unordered(run.plan, run.hda)
    loads = [_loads(one, assume, not unordered) for one in ((run,) if least is run else (least, run))]
    low, high = loads[0], loads[-1]
    resources = high.record.launched.resources
    starts = [view.start_ps(0) for view in high.record.launched.views] if run.plan.units else [0]
    start = min(starts)
    shortest = start if unordered else low.chain_ps
    longest = max(starts) + high.serial_ps if unordered else high.chain_ps + high.waiting_ps
    lower = resources.whole_ps(max(shortest, start + low.busiest_ps), run.control)
    return Price(lower, max(lower, resources.whole_ps(longest, run.control)), high.shared)


def _loads(run: Launch, assume: Mapping[str, int], ordered: bool) -> _Loads:
    """Return what a run adds up to; its long loops are run in part where that gives the same."""
    for short in shortened(run.plan, ordered):
        part = time_alone(replace(run, plan=short.plan, scalars=_reading(assume)), EVERYTHING)
        assert part.simulation is not None
        assert part.engine_rows is not None
        end = short.end_ps(part.simulation, part.engine_rows) if ordered else part.simulation.arena.last
        if end is not None:
            return _Loads(part, end, short.factors(part.simulation.code_tables.statements))
    count, most = command_count(run.plan), _physical_memory() // RECORD_BYTES
    if count > most:
        raise OutOfMemory(
            f"plan '{run.plan.name}' issues about {count:.2g} commands, more than can be recorded here "
            f"({most:.2g}), and its loops cannot be shortened",
            advice="price fewer rounds or units; the index of a long loop should decide only where regions "
            "begin, in equal steps",
        )
    run.scalars = _reading(assume)
    time_alone(run, EVERYTHING)
    assert run.simulation is not None
    return _Loads(run, run.simulation.arena.last, [Fraction(1)] * len(run.simulation.code_tables.statements))


class _Kind(NamedTuple):
    """A class of equal commands of a run, and their number."""

    kind: int
    at: int
    who: int
    engine: int
    path: int
    nbytes: int
    queue: int
    took: int
    """From its start to its end."""
    whole: int
    """From its start to its end or, of a message, to its arrival."""
    times: int

    @property
    def flow(self) -> int:
        return self.queue if self.kind == SEND else -1 - self.who


def _alike(rows: Any, factors: list[Fraction]) -> list[_Kind]:
    """Count the records of a run, equal ones together."""
    names = (
        Recorded.kind,
        Recorded.pc,
        Recorded.actor,
        Recorded.engine,
        Recorded.path,
        Recorded.nbytes,
        Recorded.queue,
    )
    columns = [rows[:, name] for name in names]
    columns[-1] = np.where(rows[:, Recorded.kind] == SEND, columns[-1], st.NONE)
    ends = rows[:, Recorded.end]
    columns += [
        ends - rows[:, Recorded.start],
        np.maximum(ends, rows[:, Recorded.arrived]) - rows[:, Recorded.start],
    ]
    code, most = np.zeros(len(rows), dtype=np.int64), 1
    for column in columns if len(rows) else ():
        low, high = int(column.min()), int(column.max())
        if most * (high - low + 1) >= 1 << 62:
            values, code = np.unique(code, return_inverse=True)
            most = len(values)
        if most * (high - low + 1) >= 1 << 62:
            values, column = np.unique(column, return_inverse=True)
            low, high = 0, len(values) - 1
        code, most = code * (high - low + 1) + (column - low), most * (high - low + 1)
    _, first, counts = np.unique(code, return_index=True, return_counts=True)
    found = zip(*(column[first].tolist() for column in columns), counts.tolist(), strict=True)
    return [_Kind._make((*one[:-1], int(one[-1] * factors[one[1]]))) for one in found]


class _Loads:
    """What the commands of a run add up to, each instruction as often as its factor says."""

    def __init__(self, run: Launch, chain_ps: int, factors: list[Fraction]) -> None:
        assert run.simulation is not None
        assert run.engine_rows is not None
        self.record = record = Record(run.simulation, run.engine_rows)
        self.chain_ps = chain_ps
        resources, every = record.launched.resources, _alike(record.rows, factors)
        moved = [one for one in every if one.path != st.NONE]
        users: dict[Any, set[Any]] = {}
        loads: dict[Any, int] = {}
        rounding: dict[Any, int] = {}
        crowded: set[Any] = set()
        counts: dict[tuple[int, int, int], int] = {}
        for one in moved:
            key = one.path, one.nbytes, one.flow
            counts[key] = counts.get(key, 0) + one.times
        for (number, nbytes, flow), count in sorted(counts.items()):
            path = record.path(number)
            pieces = len(path.pieces(nbytes))
            for stage, busy in zip(path.stages, path.stage_ps(nbytes)[1], strict=True):
                if (key := stage.resource) is not None:
                    if run.plan.levels and key[0] == "memory" and (count > 1 or flow in users.get(key, ())):
                        crowded.add(key)
                    users.setdefault(key, set()).add(flow)
                    loads[key] = loads.get(key, 0) + count * busy
                    # A transfer cut into pieces rounds the time of every piece up.
                    rounding[key] = rounding.get(key, 0) + (count * 2 * pieces if pieces > 1 else 0)
        self._engines(every, users, loads)
        self._direct(every, users, loads)
        # Transfers of one flow follow each other on links, but may meet in a memory slower than these.
        shared = [key for key, flows_of in users.items() if len(flows_of) > 1 or key in crowded]
        self.waiting_ps = sum(loads[key] + rounding.get(key, 0) for key in shared)
        least = {key: loads[key] - self.not_held.get(key, 0) for key in shared}
        if _takes_turns(run.plan, run.hda):
            self.busiest_ps = max(self._evenly(least), self.own_ps)
        else:
            self.busiest_ps = max(
                [least[key] // resources.fabric.widths[key] for key in shared] + [self.own_ps]
            )
        self.shared = tuple(sorted(str(key) for key in shared))
        missing = self._missing(moved)
        self.waiting_ps += missing
        self.serial_ps = self._serial(every, run) + missing

    def _missing(self, moved: list[_Kind]) -> int:
        """Return how long the layers behind caches serve if every block is missing and every changed one
        leaves."""
        plan, statements, total = self.record.launched.plan, self.record.statements, 0
        tiles = {tile.name: tile for tile in plan.tiles}
        for one in moved:
            statement, described = statements[one.at], self.record.path(one.path)
            if not (described.reads or described.writes):
                continue
            view = self.record.launched.views[self.record.launched.which(one.who)[0]]
            ends = ((*reads_of(statement)[:1], None)[0], write_of(statement))
            for region, end, caches in zip(
                ends, described.memories, (described.reads, described.writes), strict=True
            ):
                if region is None or not caches:
                    continue
                # A name that is carried may mean any tile of the memory.
                meant = (
                    [tiles[region.tile]]
                    if region.tile in tiles
                    else [t for t in plan.tiles if t.memory == end]
                )
                total += one.times * max(
                    (_filling(t, region, view.bricks(t.memory)[t.name], caches) for t in meant), default=0
                )
        return total

    def _evenly(self, loads: dict[Any, int]) -> int:
        """Return the busiest kind of engine or memory if every one of the machine had the same to do."""
        hda, totals = self.record.launched.resources.hda, dict[tuple[str, str], int]()
        for key, load in loads.items():
            if isinstance(key, tuple) and key[0] in ("memory", "engine"):
                totals[key[:2]] = totals.get(key[:2], 0) + load
        return max(
            (
                total // hda.level(hda.memory(name).level if kind == "memory" else name.split()[0]).total
                for (kind, name), total in totals.items()
            ),
            default=0,
        )

    def _engines(self, every: list[_Kind], users: dict[Any, set[Any]], loads: dict[Any, int]) -> None:
        """Engines that several units share are resources too; of others, the busiest counts."""
        launched, places = self.record.launched, self.record.places

        def resource(kind: str, who: int) -> Any:
            level, number = launched.which(who)
            unit = places[who - launched.first] if launched.plan.levels else number
            return launched.views[level].engine_resource(kind, int(unit))

        kinds = launched.table.engine_names
        self.own_ps, self.not_held = 0, dict[Any, int]()
        spent: dict[tuple[int, int], int] = {}
        sent: dict[tuple[int, int], list[_Kind]] = {}
        for one in every:
            if one.engine != st.NONE and one.kind != SEND:
                took = one.times * one.took if one.kind == WORK else 0
                spent[one.who, one.engine] = spent.get((one.who, one.engine), 0) + took
            if one.path != st.NONE:
                sent.setdefault((one.who, one.engine), []).append(one)
        for (who, engine), time in sorted(spent.items()):
            kind = kinds[engine] if engine < len(kinds) else "dma"
            key = resource(kind, who)
            if key is None:
                self.own_ps = max(self.own_ps, time)
            else:
                users.setdefault(key, set()).add((who, kind))
                loads[key] = loads.get(key, 0) + time
        for (who, engine), mine in sorted(sent.items()):
            kind = kinds[engine] if DMA <= engine < len(kinds) else "dma"
            key = resource(kind, who)
            if key is not None:
                users.setdefault(key, set()).add((who, kind))
                took = sum(one.times * one.took for one in mine)
                loads[key] = loads.get(key, 0) + took
                # Of that, latency of the path does not hold the engine.
                dma = launched.views[launched.which(who)[0]].mover(kind.partition(".")[2])
                held = sum(
                    one.times * (dma.startup_ps + serialise_ps(one.nbytes, dma.bandwidth)) for one in mine
                )
                self.not_held[key] = self.not_held.get(key, 0) + max(0, took - held)

    def _direct(self, every: list[_Kind], users: dict[Any, set[Any]], loads: dict[Any, int]) -> None:
        """Memories that commands of engines keep, for which units contend."""
        launched, places, statements = self.record.launched, self.record.places, self.record.statements
        for one in every if launched.plan.levels else ():
            statement = statements[one.at]
            if one.kind != WORK or not isinstance(statement, pm.Compute):
                continue
            level, flops = launched.which(one.who)[0], constant(statement.work.flops)
            name, keeps = launched.views[level].keeps_memory(statement, int(flops or 1 << 40))
            if not keeps:
                continue
            key = launched.views[level].memory_key(name, int(places[one.who - launched.first]))
            users.setdefault(key, set()).update({one.who, "direct"})
            load = one.times * (keeps if flops is not None else one.took)
            loads[key] = loads.get(key, 0) + load
            self.not_held[key] = self.not_held.get(key, 0) + (0 if flops is not None else load)

    def _serial(self, every: list[_Kind], run: Launch) -> int:
        """Return all activities one after another: while a plan is not at its end, one of them is under
        way."""
        assert run.simulation is not None
        plan, views = run.plan, self.record.launched.views
        slotted = [(x, v) for x, v in zip(plan.all_levels, views, strict=True) if x.slots is not None]
        total = sum(plan.instances(x.name) * v.to_begin_ps for x, v in slotted)
        waiting = (RECEIVE, RECEIVE_ANY, READ_SCALAR, SIGNAL, WAIT, st.BEGIN)
        total += sum(one.times * one.whole for one in every if one.kind not in waiting)
        credited = run.simulation.arena.rows("queues")[:, Queue.credit_ps].tolist()
        answers = run.simulation.arena.rows("answers")
        credit, message = (
            int(answers[answers[:, Answer.question] == reason][:, Answer.value].max(initial=0))
            for reason in (st.ASK_CREDIT, st.ASK_MESSAGE)
        )
        total += sum(one.times * (credited[one.queue] + credit) for one in every if one.kind == SEND)
        return total + message * sum(one.times for one in every if one.kind == SIGNAL)
