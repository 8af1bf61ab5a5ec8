"""``wave_bound(plan, machine)``: a lower bound of plans whose equal blocks run in waves.

A slot of the hardware runs its blocks one after the other, so some slot has ``ceil(blocks / slots)`` of them,
and no block takes less than one that has the machine for itself and finds everything in the nearest cache.
"""

from __future__ import annotations

from dataclasses import replace

from megatile.core.cached import cached_in_owner
from megatile.core.expr import symbols
from megatile.cost.price import lower_bound
from megatile.hda import HDA
from megatile.hda.parameters import figures, scaled
from megatile.plan import model as pm
from megatile.sim import simulate
from megatile.timing.resources import Resources

FREE = 1e6
"""The factor that makes a memory behind caches cost nothing, to the picosecond."""


def wave_bound(plan: pm.Plan, hda: HDA) -> int:
    """Return a lower bound of a plan's time in picoseconds, or 0 if its blocks differ."""
    alone = first_blocks(plan, 1)
    if alone is None:
        return 0
    level = plan.levels[0]
    assert level.slots is not None
    units = hda.count(level.scale) // hda.count(plan.scale)
    turns = -(-level.count // (units * level.slots))
    used = frozenset(simulate(alone, machine=hda).traffic)
    least = lower_bound(alone, _all_hits(hda, used))
    start = Resources(hda, plan).start_ps(0)
    return start + turns * max(0, least - start)


def first_blocks(plan: pm.Plan, count: int) -> pm.Plan | None:
    """Return the plan with its first blocks alone, if every block does the same."""
    if plan.units != 1 or len(plan.levels) != 1 or len(plan.streams) != 1:
        return None
    level, stream = plan.levels[0], plan.streams[0]
    talks = plan.channels or plan.flags or plan.groups or plan.transports
    if level.slots is None or stream.level != level.name or talks or level.count <= count:
        return None
    for s in plan.bodies[0]:
        if isinstance(s, (pm.If, pm.ReadScalar)):
            return None
        sizes = [s.start, s.stop, s.step] if isinstance(s, pm.Loop) else []
        if isinstance(s, pm.Compute):
            sizes = [s.work.flops, s.work.bytes, *s.write.shape, *(e for r in s.reads for e in r.shape)]
        if any("unit" in symbols(size) for size in sizes if not isinstance(size, int)):
            return None
    some = (replace(stream, units=((0, count, 1),)),)
    return replace(plan, levels=(replace(level, grid=(count,)),), streams=some)


@cached_in_owner
def _all_hits(hda: HDA, used: frozenset[str]) -> HDA:
    """Return the machine on which what lies behind the caches in use costs nothing."""
    behind = {m.of for m in hda.memories if m.cache and m.name in used}
    known = figures(hda)
    factors = {}
    for memory in behind:
        for name, factor in (("bandwidth", FREE), ("latency", 1 / FREE)):
            if f"memory.{memory}.{name}" in known:
                factors[f"memory.{memory}.{name}"] = factor
    return scaled(hda, factors) if factors else hda
