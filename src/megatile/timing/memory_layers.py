"""The memories of a machine as a plan sees them: bandwidths, slices, caches in front of them."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import pairwise

from megatile.core.cached import cached_in_owner
from megatile.hda.model import Engine, MemoryLayer
from megatile.timing.caches import Cache, brick, chain, extents
from megatile.timing.fabric import (
    Stage,
)
from megatile.timing.placement import PlacedPlan


class MemoryLayers(PlacedPlan):
    """Adds memories: what a unit gets of each, and whether others contend for it."""

    @cached_in_owner
    def memory(self, name: str) -> tuple[MemoryLayer, float, bool]:
        """Return a memory layer, the bandwidth one unit sees, and whether several units contend for it."""
        layer = self.hda.memory(name)
        level = self.hda.level(layer.level)
        bandwidth, contended = layer.effective_bandwidth, False
        if level.position < self.level.position:
            bandwidth *= level.total // self.level.total
        elif level.position > self.level.position:
            inside = self.level.total // level.total
            if not layer.shared or self._is_sliced(layer):
                bandwidth /= inside
            else:
                contended = self._several_inside(level.name)
        elif self.plan.levels and layer.shared and layer.slices == 1:
            contended = self._several_inside(level.name)
        return layer, bandwidth, contended

    def _is_single(self, layer: MemoryLayer) -> bool:
        """Return whether several units have one memory of the layer, and not a slice each."""
        inside = self.level.total // self.hda.level(layer.level).total
        return inside > 1 and layer.shared and layer.slices < inside

    def _instance(self, name: str, unit: int) -> int:
        """Return the number of the memory that a unit sees, among those of the layer's level."""
        return self.places[unit] * self.hda.level(self.memory(name)[0].level).total // self.level.total

    def _together(self, unit: int, peer: int, *names: str) -> bool:
        """Return whether one of these memories is a single one for both units: each reaches it by itself."""
        single = [name for name in names if self._is_single(self.memory(name)[0])]
        return any(self._instance(name, unit) == self._instance(name, peer) for name in single)

    def _memory_stage(self, name: str, unit: int, shared: bool = False) -> Stage:
        layer, bandwidth, contended = self.memory(name)
        key: tuple[str, str, int] | None = None
        if contended or layer.cache or shared:
            key = ("memory", layer.name, self._instance(name, unit))
        elif layer.name in self._contended_slices:
            key = ("memory", f"{layer.name} slice", self.places[unit])
        latency_ps = 0 if layer.name in self.view.counted else layer.latency_ps
        return Stage(key, latency_ps, bandwidth)

    def memory_key(self, name: str, unit: int) -> tuple[str, str, int]:
        """Return the memory that a unit sees, which it shares with others."""
        return ("memory", self.memory(name)[0].name, self._instance(name, unit))

    def _memory_stages(self, name: str, unit: int) -> list[Stage]:
        """Return the memory itself, and what one unit alone gets of it."""
        alone, stage = self.memory(name)[0].unit_bandwidth, self._memory_stage(name, unit)
        return [stage] if alone is None else [stage, Stage(None, 0, alone)]

    def caches(self, memory: str, unit: int) -> tuple[Cache, ...]:
        """Return the caches between a unit and a memory, the nearest first."""
        layers = chain(self.hda, memory, self.level.position)
        found = []
        for layer, behind in pairwise((*layers, self.hda.memory(memory))):
            stage = self._memory_stage(behind.name, unit, shared=True)
            if layer.fill is not None:
                stage = stage._replace(bandwidth=layer.fill)
            blocks = layer.size // (layer.block or layer.size)
            write_back = layer.write == "write_back"
            where = self._instance(layer.name, unit)
            found.append(Cache(layer.name, where, behind.name, blocks, write_back, stage))
        return tuple(found)

    def private(self, memory: str) -> bool:
        """Return whether units share nothing on the path to a memory, so that all paths are equivalent."""
        layer, _, contended = self.memory(memory)
        shared = contended or layer.name in self._contended_slices
        return not shared and not chain(self.hda, memory, self.level.position)

    @cached_property
    def has_caches(self) -> bool:
        """Whether caches hold blocks of the plan's tiles."""
        views = [self.of(level.name) for level in self.plan.all_levels]
        return any(view.bricks(name) for view in views for name in {t.memory for t in self.plan.tiles})

    def bricks(self, memory: str) -> dict[str, tuple[int, ...]]:
        """Return the shape of the blocks in which caches hold the tiles of a memory; none where it has no
        caches."""
        layers = chain(self.hda, memory, self.level.position)
        size = layers[0].block if layers else None
        if size is None:
            return {}
        least = extents(self.plan)
        tiles = [t for t in self.plan.tiles if self.hda.memory(t.memory) is self.hda.memory(memory)]
        return {tile.name: brick(tile, least[tile.name], size) for tile in tiles}

    def _told_apart(self, memory: str) -> tuple[int, ...]:
        """Count the instances of each layer on the path to a memory, where it matters which one is used."""
        layer, _, contended = self.memory(memory)
        between = chain(self.hda, memory, self.level.position)
        if layer.name in self._contended_slices:
            return (self.level.total,)
        apart = contended or self._is_single(layer) or layer.cache or between
        return tuple(self.hda.level(each.level).total for each in (*between, layer)) if apart else ()

    def _operand_bandwidth(self, name: str, engine: Engine, moves: bool = False) -> float | None:
        """Return what a unit has of a memory for its operands: all of it, or an even part where units of
        the plan share it. None: the memory is as fast as the engine, which then does more than move
        (``moves``)."""
        layer, bandwidth, contended = self.memory(name)
        above = self.hda.level(layer.level).position > self.hda.level(engine.level).position
        if not (moves or above if layer.roofline is None else layer.roofline):
            return None
        return bandwidth / self._at_once(layer.level, engine) if contended else bandwidth

    def _at_once(self, level: str, engine: Engine) -> int:
        """Return how many commands of an engine are under way in one unit of a level, at most: instances that
        share an engine use it one after the other."""
        engines = self.hda.level(engine.level).total // self.hda.level(level).total
        return max(1, min(self._sharers(level), engines))

    def _sharers(self, level: str) -> int:
        """Return how many units of the plan stand in one unit of a level, at most; the units of the first
        level do not share with the instances inside them."""
        total = self.hda.level(level).total
        if self.plan.levels and self.views[self.plan.level(None).name] is not self:
            return max(1, self._crowd(level))
        return max(Counter(place * total // self.level.total for place in self.places).values(), default=1)
