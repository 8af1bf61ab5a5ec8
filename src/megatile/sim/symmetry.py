"""One unit for all: where every unit of a plan does the same at the same times, one of them is simulated.

The condition is that turning all units by one changes nothing that decides time. So the only stream covers
all units; trip counts, conditions, sizes and members do not name the unit; peers are ``(unit + c) % n``;
blocks of a tile begin at places that do not depend on the unit, or at ``((± unit + c) % n) * block`` with at
most ``block`` elements (whether two of them are the same block then does not depend on the unit either); the
paths of all units have equal figures; and no link, memory or engine is used by more than one of them. Then a
message that a unit receives is, in time, the one that it sends itself, and the time of one unit is that of
all, exactly.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from megatile.core.expr import (
    ZERO,
    Binary,
    Expr,
    Symbol,
    bounds,
    constant,
    from_linear,
    linear,
    symbols,
    unit,
)
from megatile.plan import model as pm
from megatile.plan.cohort import of_units
from megatile.plan.counts import command_count
from megatile.plan.statements import engine_of, int_flows, regions_of, rewritten, write_of
from megatile.sim.deadlock import deadlock, wait_graph
from megatile.sim.simulation import MAX_RECORDS, Simulation
from megatile.timing.resources import Resources

MAX_QUEUES = 1 << 15
"""Queues whose paths are compared; with more, every unit is timed."""
LARGE = 1 << 18
"""Commands from which on a run that records nothing looks for a unit that stands for all."""


class TimedUnits(NamedTuple):
    """Which units of a plan are timed, and why."""

    one: pm.Plan | None
    """The plan of unit 0 alone, sending to itself, which stands for all; None: every unit is timed."""
    because: str

    def __str__(self) -> str:
        return f"{'every unit' if self.one is None else 'unit 0 for all'}, because {self.because}"


BESIDE = TimedUnits(None, "other launches are on the machine")


def choose_units(plan: pm.Plan, resources: Resources, records: int) -> TimedUnits:
    """Choose the units to time, in a run that records so many commands."""
    if records > MAX_RECORDS or command_count(plan) <= max(records, LARGE):
        return TimedUnits(None, "their commands are recorded, or few")
    return find_symmetry(plan, resources)


def find_symmetry(plan: pm.Plan, resources: Resources) -> TimedUnits:
    """Find the unit that stands for all, or in what units may differ."""
    differ = _difference(plan, resources)
    if differ is not None:
        return TimedUnits(None, differ)
    channels = tuple(replace(channel, source=ZERO) for channel in plan.channels)
    stream = replace(plan.streams[0], units=((0, 1, 1),), body=rewritten(plan.streams[0].body, _to_itself))
    one = replace(plan, grid=(1,), place=ZERO, channels=channels, streams=(stream,))
    return TimedUnits(one, f"all {plan.units} do the same at the same times, on links of their own")


def _difference(plan: pm.Plan, resources: Resources) -> str | None:
    """Return the first thing in which units may differ; None where one stands for all."""
    if plan.units < 2:
        return "there is one"
    if plan.levels or len(plan.streams) != 1 or plan.streams[0].unit_count() != plan.units:
        return "they have several streams or levels"
    if resources.faults:
        return "faults tell them apart"
    if any(c.installed for c in plan.channels) or any(f.installed for f in plan.flags):
        return "messages or signals may outlive the launch"
    if any(tile.shared or tile.offset is not None for tile in plan.tiles):
        return "they share tiles, or name addresses"
    if not _alike_in_the_plan(plan):
        return "they differ in what they do"
    if not _alike_on_the_machine(plan, resources):
        return "they share links, memories or engines, or differ in their paths"
    return None


def _to_itself(statement: pm.Statement) -> pm.Statement:
    return replace(statement, to=ZERO) if isinstance(statement, pm.Send) else statement


def time_one_unit(launch: Any, engine: str | None, deadline: float | None) -> bool:
    """Find the times of a launch that has the machine for itself by the unit that stands for all; whether
    the deadline allowed it."""
    resources, plan, one = launch.resources, launch.resources.plan, launch.units.one
    if launch.simulation is None:
        assert one is not None
        launch.simulation = Simulation(record=0, engine=engine, contended=False)
        begin = resources.start_ps(0)
        launch.simulation.add(one, resources, launch.scalars, begin=begin)
    simulation = launch.simulation
    while simulation.run(deadline=deadline) is not None:
        pass
    if deadline is not None and monotonic() > deadline:
        return False
    graph = wait_graph(simulation)
    if graph is not None:
        raise deadlock(f"plan '{plan.name}' is deadlocked in every unit", graph)
    launch.simulation = None
    launch.known = known = launch.alone()
    known.present, known.units = np.arange(plan.units), launch.units
    sent = simulation.messages(simulation.launches[0])
    known.messages = {
        c.name: {u * c.members + m: n for m, n in sent[c.name].items() for u in range(plan.units)}
        for c in plan.channels
    }
    known.set_times(simulation.last_ps, simulation.last_ps)
    return True


# --- the plan ----------------------------------------------------------------------------------------------


def _same(*expressions: Expr | None) -> bool:
    """Whether expressions do not depend on the unit."""
    return all(e is None or "unit" not in symbols(e) for e in expressions)


def _turning(node: Expr, units: int) -> int | None:
    """The sign of the unit in ``(± unit + c) % units``; None for other expressions."""
    if isinstance(node, Symbol) and node.name == "unit":
        return 1
    if isinstance(node, Binary) and node.operator == "%" and constant(node.right) == units:
        sign = _factor(node.left)
        return sign if sign in (1, -1) else None
    return None


def _factor(node: Expr) -> int | None:
    """By how much the unit counts in a sum; None where it is more than a sum."""
    terms, _ = linear(node)
    factor = terms.pop(unit, 0)
    return factor if _same(*terms) else None


def _alike_in_the_plan(plan: pm.Plan) -> bool:
    n = plan.units
    if any(_turning(c.source, n) != 1 for c in plan.channels):
        return False
    written: set[str] = set()
    blocks: dict[tuple[str, int], Any] = {}
    every = list(pm.statements(plan.streams[0].body))
    for statement in every:
        if not _alike(statement, n):
            return False
        write = write_of(statement)
        written |= {write.tile} if write is not None else set()
    ranges = _ranges(every)
    declared = {tile.name for tile in plan.tiles}
    if written - declared:
        written |= declared
    for statement in every:
        for region in regions_of(statement):
            for axis, (start, extent) in enumerate(zip(region.start, region.shape, strict=True)):
                kind = _block_of(start, extent, n, ranges)
                if kind is None or (kind != "same" and region.tile not in declared):
                    return False
                known = blocks.setdefault((region.tile, axis), kind)
                if known != kind and region.tile in written:
                    return False
    return True


def _alike(statement: Any, n: int) -> bool:
    """Whether a statement does the same in every unit, as far as time goes."""
    if any(region.at is not None for region in regions_of(statement)):
        return False
    work = getattr(statement, "work", None)
    if work is not None and not _same(work.flops, work.bytes):
        return False
    flows = [value for flow in int_flows(statement) for value in flow.values]
    if isinstance(statement, pm.Send):
        return _turning(statement.to, n) == 1 and _same(statement.member)
    if isinstance(statement, pm.Receive):
        return _same(statement.member, *statement.shape)
    if isinstance(statement, pm.Loop):
        return _same(statement.start, statement.stop, statement.step, *flows)
    if isinstance(statement, pm.If):
        return _same(statement.condition, *flows)
    return isinstance(statement, (pm.Compute, pm.Free, pm.Start))


def _block_of(start: Expr, extent: Expr, n: int, ranges: dict[str, tuple[int, int]]) -> Any:
    """``same`` for every unit, or (sign, size) of the blocks among which the unit chooses; None: neither."""
    if not _same(extent):
        return None
    if _same(start):
        return "same"
    terms, offset = linear(start)
    turning = [term for term in terms if not _same(term)]
    length = constant(extent)
    if len(turning) != 1 or length is None:
        return None
    sign, size = _turning(turning[0], n), terms[turning[0]]
    inside = {term: factor for term, factor in terms.items() if term is not turning[0]}
    within = bounds(from_linear(inside, offset), ranges)
    if sign is None or within is None or within[0] < 0 or within[1] + length > size:
        return None
    return sign, size


def _ranges(every: list[Any]) -> dict[str, tuple[int, int]]:
    """Between which numbers the indices of loops lie, where they are known."""
    found: dict[str, tuple[int, int]] = {}
    unknown: set[str] = set()
    for loop in every:
        if isinstance(loop, pm.Loop):
            numbers = [constant(e) for e in (loop.start, loop.stop, loop.step)]
            if None in numbers:
                unknown.add(loop.index)
                continue
            values = range(*numbers)  # type: ignore[arg-type]
            low, high = (min(values[0], values[-1]), max(values[0], values[-1])) if values else (0, 0)
            before = found.get(loop.index, (low, high))
            found[loop.index] = (min(low, before[0]), max(high, before[1]))
    return {name: interval for name, interval in found.items() if name not in unknown}


# --- the machine -------------------------------------------------------------------------------------------


def _alike_on_the_machine(plan: pm.Plan, resources: Resources) -> bool:
    """Whether all units have equal engines and paths of their own."""
    kinds = {"dma", "tensor", "vector", "channel", "control"}
    copies = {engine_of(s) for x in plan.streams for s in pm.statements(x.body) if isinstance(s, pm.Compute)}
    if any(resources.engine_resource(kind, 0) is not None for kind in kinds | copies):
        return False
    memories = {tile.memory for tile in plan.tiles} | {channel.memory for channel in plan.channels}
    if any(resources.memory(name)[2] for name in memories):
        return False
    if plan.units * sum(channel.members for channel in plan.channels) > MAX_QUEUES:
        return False
    used: set[Any] = set()
    for channel in plan.channels:
        seen = resources.on_channel(channel)
        for member in range(channel.members):
            figures = set()
            for receiver, sender in enumerate(of_units(channel.source, plan.units, member=member).tolist()):
                if resources.places[sender] == resources.places[receiver]:
                    return False
                stages = seen.fabric.stages(resources.hardware(sender), resources.hardware(receiver))
                servers = [s.resource for s in stages if s.resource is not None]
                if used.intersection(servers):
                    return False
                used.update(servers)
                lane = seen.virtual_channel(channel.name, sender, receiver)
                credit = seen.credit_ps(receiver, sender, channel)
                figures.add((lane, credit, *((s.latency_ps, s.bandwidth, s.granule) for s in stages)))
            if len(figures) != 1:
                return False
    return True
