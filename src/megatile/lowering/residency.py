"""How many instances a hardware unit holds, where they lie, and how many versions of a tile fit."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import InstanceError
from megatile.core.expr import ZERO, Expr, eq, select, unit
from megatile.hda.model import MemoryLayer
from megatile.ir.launch import Launch
from megatile.language.tile.capacity import thread_count
from megatile.language.tile.launch import instance_of
from megatile.lowering.errors import LoweringError
from megatile.lowering.levels import Levels, LoweredLevel
from megatile.lowering.streams import LoweringState
from megatile.lowering.units import tidy
from megatile.plan import model as pm
from megatile.plan.statements import regions_of

PRODUCTS = frozenset({"gemm", "gemm_add"})
REGISTER = 4
"""Bytes of a register of a thread."""


def placed(state: LoweringState) -> tuple[list[pm.Level], Expr]:
    """Return the further levels of the Plan, and where the units of the first lie."""
    levels = []
    for level in state.levels.values():
        slots: int | None = None
        place: Expr = unit
        if level.parent is not state.first:
            place = ZERO
        elif level.communicates or lives(state, level):
            place = together(state.structure, level)
        else:
            slots = fit(state, level)
        parent = level.parent.name if level.parent is not None else None
        parent = parent or state.first.scale
        levels.append(pm.Level(level.name or level.scale, level.scale, (level.total,), place, parent, slots))
    return levels, spread(state.structure)


def lives(state: LoweringState, level: LoweredLevel) -> bool:
    """Return whether device memory belongs to a level's units: each instance has a place of its own there."""
    hda = state.hda
    room = level.instances <= hda.count(level.scale) // hda.count(state.first.scale) * level.parents
    return room and state.homes.memory_depth() == level.depth


def fit(state: LoweringState, level: LoweredLevel) -> int:
    """Return instances that a hardware unit holds at a time, with as many versions of tiles as fit."""
    while True:
        try:
            return max(1, min(limits(state, level).values()))
        except InstanceError:
            most = max(state.declared.versions.values(), default=1)
            if most == 1:
                raise
            state.declared.versions.update({k: min(v, most - 1) for k, v in state.declared.versions.items()})


def named_extents(launch: Launch) -> dict[str, tuple[int, ...]]:
    """Return the scales that a program names, with the instances of those between that it does not."""
    found: dict[str, tuple[int, ...]] = {}
    between = 1
    for scale in launch.scales:
        if scale.named:
            found[scale.name] = (between * scale.extents[0], *scale.extents[1:])
            between = 1
        else:
            between *= scale.count
    return found


def limits(state: LoweringState, level: LoweredLevel) -> dict[str, int]:
    """Return how many instances of a level a hardware unit could hold for each of what they need."""
    hda, launch = state.hda, state.launch
    instance = instance_of(hda, named_extents(launch))
    blocks = launch.count(launch.dispatch, level.name or level.scale)
    units = hda.count(launch.dispatch) // hda.count(level.scale)
    most = instance.residency({})
    found = {"max_resident" if most == hda.scale(launch.dispatch).max_resident else "threads": most}
    found |= {name: instance.residency({name: size}) for name, size in bytes_of(state, level, blocks).items()}
    return {name: count * units // blocks for name, count in found.items()}


def bytes_of(state: LoweringState, level: LoweredLevel, blocks: int) -> dict[str, int]:
    """Return what one block of a level needs of every memory, in the machine's order: its largest stream's
    tiles, those of the units inside it that are levels of their own, and what threads need beside them."""
    hda = state.hda
    found: dict[str, int] = {}
    here = hda.level(hda.scale(level.scale).level).position
    inside = [lv for lv in state.levels.values() if lv.parent is level]
    each = {lv.name: lv.total for lv in inside} | {level.name: 1}
    for stream in level.streams:
        streams = [stream, *(st for lv in inside for st in lv.streams)]
        every = [s for st in streams for s in pm.statements(tuple(st.out))]
        products = {s.write.tile for s in every if isinstance(s, pm.Compute) and s.operation in PRODUCTS}
        needed: dict[str, list[int]] = {}
        for name in {r.tile for s in every for r in regions_of(s)} & set(
            state.declared.tiles
        ):  # others are messages
            tile = state.declared.tiles[name]
            if tile.level in each and hda.level(hda.memory(tile.memory).level).position <= here:
                size = math.prod(tile.shape) * itemsize(tile.dtype) * state.declared.versions.get(name, 1)
                size = -(-size * each[tile.level] // blocks)
                total = needed.setdefault(hda.memory(tile.memory).name, [0, 0, 0])
                for i, counts in enumerate((True, name in state.homes.table, name in products)):
                    total[i] += size * counts
        for name, sizes in needed.items():
            found[name] = max(found.get(name, 0), _with_overhead(state, hda.memory(name), *sizes))
    return {m.name: found[m.name] for m in hda.memories if m.name in found}


def _with_overhead(
    state: LoweringState, layer: MemoryLayer, tiles: int, declared: int, accumulators: int
) -> int:
    """Return what a block takes of a memory for its tiles, and for addresses and operands of its threads: no
    more than threads can have, as compilers spill what is not a tile. Operands are gone when what lies
    between two copies (tiles that the program does not declare) is there."""
    threads = thread_count(state.launch, state.launch.dispatch)
    if threads == 1:
        return tiles
    operands = layer.product_overhead * math.sqrt(accumulators / threads / REGISTER)
    needed = max(tiles, declared + math.ceil(threads * operands)) + threads * layer.thread_overhead
    return max(tiles, min(needed, layer.size, (layer.per_thread or layer.size) * threads))


def together(levels: Levels, level: LoweredLevel) -> Expr:
    """Return a place for each instance of a level whose instances wait for each other."""
    hda, launch = levels.hda, levels.launch
    there = hda.count(level.scale) // hda.count(levels.first.scale)
    if launch.slots is not None and level.total > launch.slots:
        raise LoweringError(
            f"{level.total} instances of '{level.scale}' wait for each other, and {launch.slots} fit at once",
            advice="launch fewer, or synchronise by ending the region",
        )
    extents = launch.extents(level.name or level.scale)
    if math.prod(extents) == level.total:
        for network in hda.networks:
            dims = tuple(getattr(network.topology, "dims", ()) or ())
            if len(dims) == len(extents) and math.prod(dims) == there:
                place = _on_grid(extents, dims)
                if place is not None:
                    return place
    return unit % there if level.total > there else unit


def _on_grid(extents: tuple[int, ...], dims: tuple[int, ...]) -> Expr | None:
    """Return a place on a grid for every instance, so that neighbours stay neighbours: as it is, with its
    axes in another order, or (of two axes) folded to and fro; None where it fits in no such way."""
    numbers = [unit // math.prod(extents[:axis]) for axis in range(len(extents))]
    index = [n if n is numbers[-1] else n % extents[axis] for axis, n in enumerate(numbers)]
    for order in permutations(range(len(extents))):
        if all(extents[axis] <= d for axis, d in zip(order, dims, strict=True)):
            return sum((index[axis] * math.prod(dims[:d]) for d, axis in enumerate(order)), ZERO)
    for long, short in ((0, 1), (1, 0)) if len(extents) == 2 else ():
        folds = -(-extents[long] // dims[0])
        if folds * extents[short] <= dims[1]:
            fold, along = index[long] // dims[0], index[long] % dims[0]
            column = select(eq(fold % 2, 0), along, dims[0] - 1 - along)
            return column + (index[short] * folds + fold) * dims[0]
    return None


def hardware_units(
    levels: Levels, level: LoweredLevel, first: int, group: tuple[int, int], axis: int | None = None
) -> list[int]:
    """Return where the units of the first group (along ``axis``) of a region lie, by rank, or the first
    instance in each of them where they are larger; ``first`` is the region's first instance."""
    launch, (low, high) = levels.launch, group
    grid = launch.grid(launch.at(high), launch.at(low))
    stride, size = (1, math.prod(grid)) if axis is None else (math.prod(grid[:axis]), grid[axis])
    ranks = np.arange(size) * stride * launch.count(launch.at(level.depth), launch.at(high))
    if level.parent is not None:
        each = math.prod(s.count for s in launch.scales[level.parent.depth : level.depth])
        ranks = ranks // each * level.total + first + ranks % each
    return [int(place) for place in _places(levels, level)[ranks]]


def _places(levels: Levels, level: LoweredLevel) -> np.ndarray:
    """Return the hardware unit of every instance of a level that stays where it is."""
    numbers = np.arange(level.instances)
    if level.parent is None:
        return np.broadcast_to(spread(levels).evaluate({"unit": numbers}), numbers.shape)
    per = levels.hda.count(level.scale) // levels.hda.count(level.parent.scale)
    place = together(levels, level) if level.parent is levels.first else ZERO
    above = _places(levels, level.parent)[numbers // level.total]
    return above * per + place.evaluate({"unit": numbers % level.total})


def spread(levels: Levels) -> Expr:
    """Return devices of a launch that takes a part of every node."""
    hda, launch = levels.hda, levels.launch
    number: Expr = unit
    place: Expr = ZERO
    below = 1
    for scale in reversed(launch.scales[: levels.first.depth]):
        place = place + (number % scale.count if scale.count > 1 else ZERO) * below
        number = number // scale.count
        at = launch.depth(scale.name)
        above = launch.scales[at - 2].name if at > 1 else None
        below *= hda.count(scale.name) // hda.count(above) if above else 1
    return unit if levels.first.total == 1 else tidy(place, {"unit": (0, levels.first.total - 1)})
