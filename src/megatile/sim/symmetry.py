"""One unit for all: where every unit of a plan does the same at the same times, one of them is simulated.

All units of the plan do the same (`plan.symmetry`), their paths have equal figures, and no link, memory or
engine is used by more than one of them. The time of one unit is then that of all, exactly.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from megatile.plan import model as pm
from megatile.plan.cohort import of_units
from megatile.plan.counts import command_count
from megatile.plan.statements import engine_of
from megatile.plan.symmetry import difference, one_unit
from megatile.sim.deadlock import deadlock, wait_graph
from megatile.sim.simulation import MAX_RECORDS, Simulation
from megatile.timing.resources import Resources

MAX_QUEUES = 1 << 15
"""Queues whose paths are compared; with more, every unit is timed."""
LARGE = 1 << 18
"""Commands from which on a run that records nothing looks for a unit that represents all."""


class TimedUnits(NamedTuple):
    """Which units of a plan are timed, and why."""

    one: pm.Plan | None
    """The plan of unit 0 alone, sending to itself, which represents all; None: every unit is timed."""
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
    """Find the unit that represents all, or how units may differ."""
    differ = "faults tell them apart" if resources.faults else difference(plan)
    if differ is None and not _alike_on_the_machine(plan, resources):
        differ = "they share links, memories or engines, or differ in their paths"
    if differ is not None:
        return TimedUnits(None, differ)
    return TimedUnits(
        one_unit(plan), f"all {plan.units} do the same at the same times, on links of their own"
    )


def time_one_unit(launch: Any, engine: str | None, deadline: float | None) -> bool:
    """Find the times of a launch that has the machine for itself by the unit that represents all; whether
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
    known.set_times(simulation.arena.last, simulation.arena.last)
    return True


def _alike_on_the_machine(plan: pm.Plan, resources: Resources) -> bool:
    """Return whether all units have equal engines and paths of their own."""
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
