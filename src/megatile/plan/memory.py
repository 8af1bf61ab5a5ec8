"""Whether what a plan places in memories fits, and whether ranges that have fixed places keep apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

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
    """Ranges with a fixed offset in the same memory do not overlap."""
    fixed = sorted(
        (memory, offset, offset + size, what)
        for what, memory, size, offset in blocks(plan)
        if offset is not None and size
    )
    for (memory, _, end, what), (other_memory, start, _, other) in pairwise(fixed):
        if memory == other_memory and start < end:
            raise PlanError(f"{what} and {other} overlap in memory '{memory}' at byte {start}")


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
