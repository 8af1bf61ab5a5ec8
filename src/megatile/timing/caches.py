"""Caches between units and memories: which of them a copy passes, and the blocks that they hold."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from megatile.core.dtypes import itemsize
from megatile.core.expr import constant
from megatile.hda import HDA
from megatile.hda.model import MemoryLayer
from megatile.plan import model as pm
from megatile.plan.statements import regions_of
from megatile.timing.fabric import Stage


class Cache(NamedTuple):
    """One cache on the path between a unit and a memory, and what blocks cost that come from behind it."""

    name: str
    instance: int
    of: str
    """What it is in front of."""
    blocks: int
    """How many it holds."""
    writes_back: bool
    behind: Stage
    """The memory or cache behind it, at the rate at which blocks come in."""


def chain(hda: HDA, memory: str, above: int) -> tuple[MemoryLayer, ...]:
    """Return the caches in front of a memory that stand above a level's position, the nearest to the units
    first. A cache without ``of`` or ``block`` in the machine file has no effect."""
    name, found = hda.memory(memory).name, list[MemoryLayer]()
    while True:
        caches = [m for m in hda.memories if m.cache and m.block and m.of and hda.memory(m.of).name == name]
        if not caches or hda.level(caches[0].level).position <= above:
            return tuple(found)
        found.insert(0, caches[0])
        name = caches[0].name


def extents(plan: pm.Plan) -> dict[str, tuple[int, ...]]:
    """Of every tile, the least extents of the regions that streams use of it."""
    found = {tile.name: list(tile.shape) for tile in plan.tiles}
    every = (region for body in plan.bodies for s in body for region in regions_of(s) if region.tile in found)
    for region in every:
        least = found[region.tile]
        for axis, extent in enumerate(region.shape):
            least[axis] = min(least[axis], constant(extent) or least[axis])
    return {name: tuple(sizes) for name, sizes in found.items()}


def brick(tile: pm.Tile, least: tuple[int, ...], block: int) -> tuple[int, ...]:
    """Return the shape of a tile's blocks: the least extents in use, halved from the first dimension on until
    they fit a block of so many bytes, or doubled from the last one on while they do."""
    shape = [max(1, extent) for extent in least]

    def nbytes() -> int:
        return prod(shape) * itemsize(tile.dtype)

    for axis in range(len(shape)):
        while nbytes() > block and shape[axis] > 1:
            shape[axis] = -(-shape[axis] // 2)
    for axis in reversed(range(len(shape))):
        while 2 * nbytes() <= block and shape[axis] < tile.shape[axis]:
            shape[axis] = min(2 * shape[axis], tile.shape[axis])
    return tuple(shape)
