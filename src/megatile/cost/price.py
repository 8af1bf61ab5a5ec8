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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr import constant
from megatile.cost.extremes import Undecided, extreme
from megatile.cost.floor import floor
from megatile.hda import HDA, machine as find_machine
from megatile.plan import model as pm
from megatile.plan.model import Plan, require_plan
from megatile.plan.residency import copies, units_below
from megatile.plan.statements import reads_of, write_of
from megatile.plan.structure import check_structure
from megatile.sim import state as st
from megatile.sim.data import Assumed
from megatile.sim.instructions import COPY, RENDEZVOUS, SEND, SIGNAL, WORK
from megatile.sim.record import Record
from megatile.sim.result import Run
from megatile.sim.state import Answer, Queue, Recorded
from megatile.sim.table import DMA
from megatile.timing.caches import Cache
from megatile.timing.fabric import serialise_ps
from megatile.timing.view import Timing, as_timing

EVERYTHING = 1 << 40
FEW = 64
"""Up to so many instances in turns, both bounds come from runs at once."""


@dataclass(frozen=True)
class Price:
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
    if _takes_turns(plan, find_machine(machine), FEW) and not {pm.ReceiveAny, pm.ReadScalar} & plan.kinds:
        return Price.bounded(least, bounds)
    try:
        found = bounds()
    except Undecided:  # the lower bound holds all the same; who asks for the upper one gets the reason
        return Price.bounded(least, bounds)
    return replace(found, lower_ps=max(found.lower_ps, least), upper_ps=max(found.upper_ps, least))


def lower_bound(plan: Plan, machine: HDA | str, *, launch: bool = True, timing: Timing | None = None) -> int:
    """The longest chain of dependencies alone: cheaper than `price`, and still a lower bound."""
    found = []
    for run in _runs(plan, machine, timing, launch):
        if pm.ReadScalar in plan.kinds:
            return floor(plan, machine, launch=launch)
        if _unordered(plan, find_machine(machine)):
            return price(plan, machine, launch=launch, timing=timing).lower_ps
        run.run(0)
        found.append(run.end_ps)
    return min(found)


def _runs(plan: Plan, machine: HDA | str, timing: Timing | None, launch: bool) -> list[Run]:
    require_plan(plan, "price")
    if not isinstance(plan, Plan) or not isinstance(machine, (HDA, str)):
        raise MegatileError(
            f"price takes a Plan and a machine, not {type(plan).__name__} and {type(machine).__name__}",
            advice='price(plan, machine="ahbm")',
        )
    check_structure(plan)
    hda = find_machine(machine)
    return [
        Run(plan, hda, option, launch=launch, contended=False)
        for option in as_timing(timing).options(hda, plan.scale)
    ]


def _blocks(tile: pm.Tile, region: pm.Region, brick: tuple[int, ...]) -> tuple[int, int]:
    """How many blocks of a tile a region may touch at most, and the bytes of each."""
    count = 1
    for axis, (extent, size) in enumerate(zip(tile.shape, brick, strict=True)):
        known = constant(region.shape[axis]) if len(region.shape) == len(brick) else None
        whole = -(-extent // size)
        count *= whole if known is None else min(whole, -(-known // size) + 1)
    return count, prod(brick) * itemsize(tile.dtype)


def _filling(tile: pm.Tile, region: pm.Region, brick: tuple[int, ...], caches: Iterable[Cache]) -> int:
    """How long the layers behind caches serve at most for a region of a tile."""
    blocks, size = _blocks(tile, region, brick)
    behind = [cache.behind for cache in caches]
    return sum(blocks * (serialise_ps(size, stage.bandwidth) + 1) + stage.latency_ps for stage in behind)


def _reading(assume: Mapping[str, Any]) -> Any:
    """Values for `ReadScalar`: those that are assumed, else the greatest."""
    known = Assumed(assume)
    return lambda read, *asked: known(read, *asked) if read.name in assume else read.bound


def _unordered(plan: Plan, hda: HDA) -> bool:
    """Whether contention may change what comes first, and with it the course of the plan."""
    return pm.ReceiveAny in plan.kinds or _takes_turns(plan, hda)


def _takes_turns(plan: Plan, hda: HDA, more_than: int = 0) -> bool:
    """Whether instances wait for slots of others: more than so many, and more than are there at a time."""
    slotted = [x for x in plan.levels if x.slots is not None and plan.instances(x.name) > more_than]
    if not slotted:
        return False
    places = copies(plan, hda)

    def waits(level: pm.Level) -> bool:
        above = places[level.parent][0] if level.parent else np.zeros(1, np.int64)
        crowd = int(np.max(np.unique(above, return_counts=True)[1], initial=0))
        return crowd * level.count > units_below(hda, level, plan) * (level.slots or 0)

    return any(waits(level) for level in slotted)


def _price(least: Run, run: Run, assume: Mapping[str, int]) -> Price:
    """Bounds of a plan that has the least to do in one run and the most in the other."""
    unordered = _unordered(run.plan, run.hda)
    loads = []
    for one in (run,) if least is run else (least, run):
        one.scalars = _reading(assume)
        one.run(EVERYTHING)
        loads.append(_Loads(one))
    low, high = loads[0], loads[-1]
    resources = high.record.launched.resources
    starts = [view.start_ps(0) for view in high.record.launched.views] if run.plan.units else [0]
    start = min(starts)
    shortest = start if unordered else low.chain_ps
    longest = max(starts) + high.serial_ps if unordered else high.chain_ps + high.waiting_ps
    lower = resources.whole_ps(max(shortest, start + low.busiest_ps), run.launch)
    return Price(lower, max(lower, resources.whole_ps(longest, run.launch)), high.shared)


class _Loads:
    """What the commands of a run add up to."""

    def __init__(self, run: Run) -> None:
        assert run.simulation is not None
        assert run.launched is not None
        self.record = record = Record(run.simulation, run.launched)
        self.chain_ps = run.simulation.last_ps
        resources, rows = record.launched.resources, record.rows
        users: dict[Any, set[Any]] = {}
        loads: dict[Any, int] = {}
        rounding: dict[Any, int] = {}
        crowded: set[Any] = set()
        moved = rows[rows[:, Recorded.path] != st.NONE]
        flows = np.where(
            moved[:, Recorded.kind] == SEND,
            moved[:, Recorded.queue],
            -1 - moved[:, Recorded.actor],
        )
        keys = np.stack([moved[:, Recorded.path], moved[:, Recorded.nbytes], flows], axis=1)
        pairs, counts = np.unique(keys, axis=0, return_counts=True) if len(keys) else (keys, np.zeros(0))
        for (number, nbytes, flow), count in zip(pairs.tolist(), counts.tolist(), strict=True):
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
        self._engines(rows, users, loads)
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
        missing = self._missing(rows)
        self.waiting_ps += missing
        self.serial_ps = self._serial(rows, run) + missing

    def _missing(self, rows: Any) -> int:
        """How long the layers behind caches serve if every block is missing and every changed one leaves."""
        plan, statements, total = self.record.launched.plan, self.record.statements, 0
        tiles = {tile.name: tile for tile in plan.tiles}
        moved = rows[rows[:, Recorded.path] != st.NONE][:, [Recorded.pc, Recorded.path, Recorded.actor]]
        keys, counts = np.unique(moved, axis=0, return_counts=True) if len(moved) else (moved, np.zeros(0))
        for (at, path, who), count in zip(keys.tolist(), counts.tolist(), strict=True):
            statement, described = statements[at], self.record.path(path)
            if not (described.reads or described.writes):
                continue
            view = self.record.launched.views[self.record.launched.which(who)[0]]
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
                total += count * max(
                    (_filling(t, region, view.bricks(t.memory)[t.name], caches) for t in meant), default=0
                )
        return total

    def _evenly(self, loads: dict[Any, int]) -> int:
        """The busiest kind of engine or memory if every one of the machine had the same to do."""
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

    def _engines(self, rows: Any, users: dict[Any, set[Any]], loads: dict[Any, int]) -> None:
        """Engines that several units share are resources too; of others, the busiest counts."""
        launched, places = self.record.launched, self.record.places

        def resource(kind: str, who: int) -> Any:
            level, number = launched.which(who)
            unit = places[who - launched.first] if launched.plan.levels else number
            return launched.views[level].engine_resource(kind, int(unit))

        kinds = launched.table.engine_names
        self.own_ps, self.not_held = 0, dict[Any, int]()
        work = rows[(rows[:, Recorded.engine] >= 1) & (rows[:, Recorded.kind] != SEND)]
        spent = np.where(
            work[:, Recorded.kind] == WORK,
            work[:, Recorded.end] - work[:, Recorded.start],
            0,
        )
        keys = work[:, [Recorded.actor, Recorded.engine]]
        pairs, inverse = (
            np.unique(keys, axis=0, return_inverse=True) if len(keys) else (keys, np.zeros(0, int))
        )
        times = np.bincount(inverse.reshape(-1), weights=spent, minlength=len(pairs))
        for (who, engine), time in zip(pairs.tolist(), times.tolist(), strict=True):
            kind = kinds[engine] if engine < len(kinds) else "dma"
            key = resource(kind, who)
            if key is None:
                self.own_ps = max(self.own_ps, int(time))
            else:
                users.setdefault(key, set()).add((who, kind))
                loads[key] = loads.get(key, 0) + int(time)
        sends = rows[rows[:, Recorded.path] != st.NONE]
        for who, engine in np.unique(sends[:, [Recorded.actor, Recorded.engine]], axis=0).tolist():
            kind = kinds[engine] if DMA <= engine < len(kinds) else "dma"
            key = resource(kind, who)
            if key is not None:
                mine = sends[(sends[:, Recorded.actor] == who) & (sends[:, Recorded.engine] == engine)]
                users.setdefault(key, set()).add((who, kind))
                took = int((mine[:, Recorded.end] - mine[:, Recorded.start]).sum())
                loads[key] = loads.get(key, 0) + took
                # Of that, latency of the path does not hold the engine.
                dma = launched.views[launched.which(who)[0]].mover(kind.partition(".")[2])
                held = sum(
                    dma.startup_ps + serialise_ps(b, dma.bandwidth) for b in mine[:, Recorded.nbytes].tolist()
                )
                self.not_held[key] = self.not_held.get(key, 0) + max(0, took - held)

    def _serial(self, rows: Any, run: Run) -> int:
        """All activities one after another: while a plan is not at its end, one of them is under way."""
        assert run.simulation is not None
        plan, views = run.plan, self.record.launched.views
        slotted = [(x, v) for x, v in zip(plan.all_levels, views, strict=True) if x.slots is not None]
        begins = sum(plan.instances(x.name) * v.to_begin_ps for x, v in slotted)
        ends = np.maximum(rows[:, Recorded.end], rows[:, Recorded.arrived])
        active = np.isin(rows[:, Recorded.kind], (WORK, COPY, SEND, st.INTO, RENDEZVOUS))
        total = begins + int((ends - rows[:, Recorded.start])[active].sum())
        queues = run.simulation.table("queues")
        total += int((queues[:, Queue.sent] * queues[:, Queue.credit]).sum())
        memo = run.simulation.table("memo")
        total += int(
            queues[:, Queue.sent].sum()
            * memo[memo[:, Answer.question] == st.ASK_CREDIT][:, Answer.value].max(initial=0)
        )
        signals = int(np.count_nonzero(rows[:, Recorded.kind] == SIGNAL))
        delays = memo[memo[:, Answer.question] == st.ASK_MESSAGE][:, Answer.value]
        return total + signals * int(delays.max(initial=0))
