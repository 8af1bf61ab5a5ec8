"""Whether what a plan places in memories fits, and whether ranges that have fixed places keep apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatile.hda import HDA
from megatile.plan.cohort import spread
from megatile.plan.model import Plan, PlanError


def blocks(plan: Plan) -> Iterator[tuple[str, str, int, int | None]]:
    """(what, memory, bytes per unit, offset) of every tile and every receive range."""
    for tile in plan.tiles:
        sharers = plan.units / max(1, plan.owners(tile))
        yield f"tile '{tile.name}'", tile.memory, round(tile.nbytes * tile.versions / sharers), tile.offset
    for channel in plan.channels:
        size = channel.slots * channel.slot_bytes
        for member in range(channel.members):
            offset = None if channel.offset is None else channel.offset + member * size
            yield f"receive range {channel.label(member)}", channel.memory, size, offset


def check_ranges(plan: Plan) -> None:
    """Ranges with a fixed offset in the same memory do not overlap; scratch may be used for several tiles."""
    scratch = {f"tile '{tile.name}'" for tile in plan.tiles if tile.role == "local"}
    fixed = sorted(
        (memory, offset, offset + size, what)
        for what, memory, size, offset in blocks(plan)
        if offset is not None and size
    )
    reached: dict[tuple[str, bool], tuple[int, str]] = {}
    for memory, start, end, what in fixed:
        mine = what in scratch
        for other in (True, False):
            until, name = reached.get((memory, other), (0, ""))
            if start < until and not (mine and other):
                raise PlanError(f"{name} and {what} overlap in memory '{memory}' at byte {start}")
        reached[memory, mine] = max(reached.get((memory, mine), (0, "")), (end, what))


def aliases(plan: Plan) -> dict[str, str]:
    """Tiles of scratch at one address: for each of them the first tile of those that it overlaps with."""
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


def check_memory(plan: Plan, hda: HDA) -> None:
    """The tiles and receive ranges of all units fit the memories they are in."""
    if not (plan.tiles or plan.channels):
        return
    per_memory: dict[str, int] = {}
    largest: dict[str, tuple[int, str]] = {}
    for what, name, size, _ in blocks(plan):
        layer = hda.memory(name)
        if layer.cache:
            raise PlanError(f"{what} cannot be placed in '{name}': it is a cache of machine '{hda.name}'")
        per_memory[layer.name] = per_memory.get(layer.name, 0) + size
        largest[layer.name] = max(largest.get(layer.name, (0, "")), (size, what))
    here = hda.level(hda.scale(plan.scale).level)
    places = spread(plan.place.evaluate({"unit": np.arange(plan.units)}), plan.units)
    for name, size in per_memory.items():
        layer = hda.memory(name)
        level = hda.level(layer.level)
        holders = places * level.total // here.total if level.total < here.total else places
        crowd = int(np.bincount(holders).max()) if len(holders) else 0
        room = layer.available * max(1, level.total // here.total)
        if size * crowd > room:
            raise PlanError(
                f"memory '{name}' of machine '{hda.name}' has {room} bytes, the plan needs {size * crowd} "
                f"({crowd} units of {size} bytes each; the largest is {largest[name][1]})"
            )
