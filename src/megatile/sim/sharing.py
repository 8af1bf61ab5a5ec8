"""Which links more than one flow uses: only there transfers have to wait for their turn in the time queue.

A flow is a queue, or the copies of one instance between the same two places. Those of one flow leave their
engine one after another, so that they never meet on a link. More may be taken for shared than is: that costs
time, not truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import constant
from megatile.plan import model as pm
from megatile.plan.cohort import spread
from megatile.sim.path_queries import PathQueries
from megatile.sim.state import NONE, RegionRow
from megatile.sim.stream_peers import StreamPeers, is_own
from megatile.timing.machine_timing import TimingError
from megatile.timing.spread_hops import check_spread

if TYPE_CHECKING:
    from megatile.sim.launch_rows import LaunchRows
    from megatile.sim.simulation import Simulation

MAX_QUEUES = 1 << 20
"""Up to so many queues it is found out beforehand which links only one of them uses."""
MAX_HOPS = 1 << 26
"""Links that the flows of a launch cross in all: beyond, they would be under way for hours."""
Ends = tuple[int, Any, Any, Any]
"""Level (counted in the plan), where transfers begin and end, and what tells their flows apart."""


def find_shared(simulation: Simulation, launched: LaunchRows) -> None:
    """Count the flows on every link that a launch may use."""
    paths = simulation.paths
    if launched.resources.faults.link_down:  # who needs a link that is down is refused when it does
        paths.everything_shared = True
    if paths.everything_shared or not paths.contended:
        return
    if any(tile.over is not None for tile in launched.plan.tiles):
        check_spread(launched.resources, MAX_HOPS)
    found: list[Ends] = []
    for ends in (*_messages(simulation, launched), *_copies(simulation, launched)):
        if ends is None:
            paths.everything_shared = True
            return
        found.append(ends)
    users: dict[Any, Any] = {}
    hops = 0
    for level, here, there, flows in found:
        view = launched.views[level]
        a, b = view.spots[here], view.spots[there]
        for group in view.fabric.alike(view.level.name, a, b):
            one = group.pairs[0]
            if a[one] != b[one]:
                stages = view.fabric.stages(view.hardware(int(here[one])), view.hardware(int(there[one])))
                hops += len(stages) * len(group.pairs)
                if hops > MAX_HOPS:
                    raise TimingError(
                        f"the transfers of plan '{launched.plan.name}' cross more than {MAX_HOPS:,} links, "
                        f"many of them {len(stages)} each: too many to be simulated one by one",
                        advice="place units that talk to each other side by side, as a grid does that fits "
                        f"the network '{group.network.name}' of {view.hda.name}"
                        if group.network
                        else "",
                    )
                paths.count(view.fabric, stages, group, flows, users)


def _messages(simulation: Simulation, launched: LaunchRows) -> Iterator[Ends | None]:
    """Yield the ends of all queues that messages may take; None where they are not always the same."""
    plan, table = launched.plan, launched.table
    sent: dict[str, set[tuple[str, int | None]]] = {}
    for stream, body in zip(plan.streams, plan.bodies, strict=True):
        for s in body if pm.Send in plan.kinds else ():
            if isinstance(s, pm.Send):
                sent.setdefault(s.channel, set()).add((plan.level(stream.level).name, constant(s.member)))
    channels = [(c, f) for c, f in zip(plan.channels, launched.sources, strict=True) if c.name in sent]
    if sum(c.members * plan.instances(c.level) for c, _ in channels) > MAX_QUEUES:
        yield None
        return
    for channel, source in channels:
        name = plan.level(channel.level).name
        level, units = table.levels[name], plan.instances(channel.level)
        rows = launched.levels[level]
        if {level for level, _ in sent[channel.name]} != {name} or not rows.fixed:
            yield None
            return
        places, members = rows.places, {member for _, member in sent[channel.name]}
        for member in range(channel.members) if None in members else members & {*range(channel.members)}:
            sources = spread(source({"unit": np.arange(units), "member": member}), units)
            receivers = np.flatnonzero((sources >= 0) & (sources < units))

            def flow(i: int, key: Any = (channel.name, member), receivers: Any = receivers) -> Any:
                return (*key, int(receivers[i]))

            yield level, places[sources[receivers]], places[receivers], flow


def _copies(simulation: Simulation, launched: LaunchRows) -> Iterator[Ends | None]:
    """Yield the ends of all copies between instances."""
    tables, answers = simulation.code_tables, PathQueries(simulation)
    known: set[tuple[Any, ...]] = set()
    for number, stream in enumerate(launched.plan.streams):
        level = launched.table.levels[launched.plan.level(stream.level).name]
        for pc in tables.rest(launched.table.streams[number].first):
            ends = tables.ends(pc)
            if not all(is_own(tables.regions[r]) for r in ends if r != NONE):
                peers = StreamPeers(simulation, launched, level, number, pc)
                found = answers.copy_ends(peers)
                if found is None or not found[3]:
                    yield None
                    return
                launched.ends[pc] = found
                (here, _), (there, _), possible, _ = found
                chosen = np.flatnonzero(possible & (here != there))
                memories = tuple(tuple(tables.regions[r][: RegionRow.tile + 1]) for r in ends if r != NONE)
                units, here, there = peers.units[chosen], here[chosen], there[chosen]
                key = (level, memories, *(each.tobytes() for each in (units, here, there)))
                if key not in known:
                    known.add(key)

                    def flow(i: int, n: int = len(known), units: Any = units) -> Any:
                        return (n, int(units[i]))

                    yield level, here, there, flow
