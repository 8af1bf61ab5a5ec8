"""Check that what a plan places in memories fits, and that ranges at fixed addresses do not overlap."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any
from weakref import ref

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.hda import HDA
from megatile.plan.model import Level, Plan, PlanError, Tile
from megatile.plan.residency import copies
from megatile.plan.statements import regions_of, statements


def blocks(plan: Plan, level: str | None = None) -> Iterator[tuple[str, str, int, int | None]]:
    """(what, memory, bytes per unit, offset) of every tile and every receive range of a level."""
    for tile in plan.tiles:
        if tile.over is not None and plan.level(tile.over).slots is None:
            if tile.over == level:
                yield f"a part of tile '{tile.name}'", tile.memory, _part_bytes(plan, tile), None
            continue
        if tile.level != level:
            continue
        size = tile.nbytes * tile.versions
        if tile.owners is not None:
            size = round(size * max(1, tile.owners) / plan.instances(level))
        yield f"tile '{tile.name}'", tile.memory, size, tile.offset
    for channel in plan.channels:
        if channel.level != level:
            continue
        size = channel.slots * channel.slot_bytes
        for member in range(channel.members):
            offset = None if channel.offset is None else channel.offset + member * size
            yield f"receive range {channel.label(member)}", channel.memory, size, offset


def _part_bytes(plan: Plan, tile: Tile) -> int:
    """Return the most bytes that one place has of a spread tile."""
    each = -(-prod(tile.block_grid) // plan.level(tile.over).count)
    return min(tile.nbytes, each * prod(tile.block) * itemsize(tile.dtype)) * tile.versions


def check_ranges(plan: Plan) -> None:
    """Ranges with a fixed offset in the same memory do not overlap; scratch may be used for several tiles."""
    if all(tile.offset is None for tile in plan.tiles) and all(c.offset is None for c in plan.channels):
        return
    scratch = {f"tile '{tile.name}'" for tile in plan.tiles if tile.role == "local"}
    fixed = sorted(
        (memory, offset, offset + size, what)
        for level in (None, *(level.name for level in plan.levels))
        for what, memory, size, offset in blocks(plan, level)
        if offset is not None and size
    )
    reached: dict[tuple[str, bool], tuple[int, str]] = {}
    for memory, start, end, what in fixed:
        if start < 0:
            raise PlanError(f"{what} would lie at byte {start} of memory '{memory}'")
        mine = what in scratch
        for other in (True, False):
            until, name = reached.get((memory, other), (0, ""))
            if start < until and not (mine and other):
                raise PlanError(f"{name} and {what} overlap in memory '{memory}' at byte {start}")
        reached[memory, mine] = max(reached.get((memory, mine), (0, "")), (end, what))


def aliases(plan: Plan) -> dict[str, str]:
    """Return tiles of scratch at one address: for each of them the first tile of those that it overlaps
    with."""
    fixed = sorted(
        (tile.memory, tile.offset, tile.offset + tile.nbytes * tile.versions, tile.name)
        for tile in plan.tiles
        if tile.offset is not None and tile.role == "local" and not tile.shared
    )
    first: dict[str, str] = {}
    before, until = ("", ""), 0
    for memory, start, end, name in fixed:
        if memory == before[0] and start < until:
            first[before[1]] = first[name] = before[1]
            until = max(until, end)
        else:
            before, until = (memory, name), end
    return first


def _own_stream(plan: Plan, level: Level) -> dict[str, int]:
    """Return tiles that only one of a level's streams names, with its number: an instance in a slot runs one
    stream, so of these tiles it keeps only that one's."""
    users: dict[str, set[int | None]] = {}
    for number, stream in enumerate(plan.streams):
        mine = plan.level(stream.level) is level
        for statement in statements(stream.body):
            for region in regions_of(statement):
                users.setdefault(f"tile '{region.tile}'", set()).add(number if mine else None)
    return {name: next(iter(u)) for name, u in users.items() if len(u) == 1 and None not in u}  # type: ignore[misc]


@partial(cached_in_owner, key=ref)
def check_memory(plan: Plan, hda: HDA) -> None:
    """Check that the tiles and receive ranges of all units that are there at a time fit the memories they are
    in, or the slices of those; what has a fixed place lies inside."""
    if not (plan.tiles or plan.channels):
        return
    check_ranges(plan)
    found: dict[str, list[tuple[Level, int]]] = {}
    largest: dict[str, tuple[int, str]] = {}
    fixed: list[tuple[str, str, int, int]] = []
    for level in plan.all_levels:
        sizes: dict[tuple[str, int | None], int] = {}
        own = _own_stream(plan, level) if level.slots is not None else {}
        for what, name, size, offset in blocks(plan, None if level is plan.first else level.name):
            layer = hda.memory(name)
            if layer.cache:
                raise PlanError(f"{what} cannot be placed in '{name}': it is a cache of machine '{hda.name}'")
            if offset is not None:
                fixed.append((layer.name, what, offset, offset + size))
            place = (layer.name, own.get(what))
            sizes[place] = sizes.get(place, 0) + size
            largest[layer.name] = max(largest.get(layer.name, (0, "")), (size, what))
        for name in dict.fromkeys(name for name, _ in sizes):
            alone = [size for (other, stream), size in sizes.items() if other == name and stream is not None]
            size = sizes.get((name, None), 0) + max(alone, default=0)
            found.setdefault(name, []).append((level, size))
    resident = copies(plan, hda)
    for name, parts in found.items():
        layer = hda.memory(name)
        there, slices = hda.level(layer.level).total, max(1, layer.slices)
        everything = sum(size * int(resident[level.name][1].sum()) for level, size in parts)
        if everything <= layer.available // slices and not fixed:  # wherever it lies
            continue
        totals = [hda.level(hda.scale(level.scale).level).total for level, _ in parts]
        # What lies in a memory (or slices) finer than the scale is spread over all of it below the unit.
        grain = min(there * slices, *totals)
        crowds = [
            np.bincount(resident[level.name][0] * grain // total, resident[level.name][1], grain).astype(int)
            for (level, _), total in zip(parts, totals, strict=True)
        ]
        needed: Any = sum(crowd * size for crowd, (_, size) in zip(crowds, parts, strict=True))
        at, room = int(np.argmax(needed)), layer.available // slices * (there * slices // grain)
        whole = f"memory '{name}' of machine '{hda.name}' has {room} bytes"
        whole += f" in each of its {slices} slices" if slices > 1 and grain > there else ""
        for memory, what, start, end in fixed:
            if memory == name and end > room:
                raise PlanError(f"{whole}, {what} would lie at bytes {start} to {end} of it")
        if needed[at] > room:
            each = " and ".join(
                f"{int(crowd[at])} units of {size} bytes each"
                for crowd, (_, size) in zip(crowds, parts, strict=True)
            )
            raise PlanError(
                f"{whole}, the plan needs {int(needed[at])} ({each}; the largest is {largest[name][1]})"
            )
