"""Plans changed as if a block kept something in a tile of its own near its engines: sums, loaded parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megatile.core.expr import Const
from megatile.hda import HDA
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict.footprint import NOTHING, Key, Loads, tile_bytes

NEAR = "l1"
"""The level of tiles that all lanes of a block share."""


def _tile_near(plan: pm.Plan, hda: HDA, like: pm.Tile, level: str | None) -> pm.Tile | None:
    """Return a tile of a block as large as another one; None where there is no room for it."""
    memory = hda.memory(NEAR)
    tile = pm.Tile(f"{like.name} near", like.shape, like.dtype, memory.name, level=level)
    return tile if tile_bytes(tile) <= memory.available else None


def sums_in_tile(plan: pm.Plan, hda: HDA, worst: pm.Compute) -> pm.Plan | None:
    """Return the Plan whose blocks combine in a tile of their own what a command changes in a tensor, and
    change the tensor once, at the end; None where that cannot be."""
    like = next(t for t in plan.tiles if t.name == worst.write.tile)
    streams = [x for x in plan.streams if any(s is worst for s in pm.statements(x.body))]
    near = _tile_near(plan, hda, like, streams[0].level) if len(streams) == 1 else None
    if near is None or like.role == "local" or worst.write.start or worst.write.at is not None:
        return None

    def own(region: pm.Region) -> pm.Region:
        return pm.Region(near.name) if region.tile == like.name else region

    def change(s: Any) -> Any:
        if not isinstance(s, pm.Compute) or s.write != worst.write:
            return s
        kept = tuple((name, value) for name, value in s.attributes if name != "each")
        return replace(
            s, write=own(s.write), reads=tuple(map(own, s.reads)), attributes=kept,
            work=replace(s.work, fetched=0),
        )  # fmt: skip

    elements = 1
    for extent in like.shape:
        elements *= extent
    add = replace(
        worst,
        reads=(worst.write, pm.Region(near.name)),
        work=replace(worst.work, flops=Const(elements), atomics=1),
    )
    changed = replace(streams[0], body=(*rewritten(streams[0].body, change), add))
    return replace(
        plan,
        tiles=(*plan.tiles, near),
        streams=tuple(changed if x is streams[0] else x for x in plan.streams),
    )


def shifted_near(
    plan: pm.Plan, hda: HDA, found: list[tuple[Loads, float]], shares: Mapping[Key, float]
) -> pm.Plan:
    """Return the Plan whose lanes take from the level that they share what is loaded again shifted: elements
    that other lanes have from an earlier load."""
    names = set[str]()
    for one, _ in found:
        seen = set[Any]()
        for key, box in one.boxes:
            command = one.commands[key]
            if shares.get(key, 1.0) < 1 - NOTHING and box not in seen and command.engine == "dma":
                names.add(command.write.tile)
            seen.add(box)
    memory = hda.memory(NEAR)
    tiles = tuple(
        replace(t, memory=memory.name)
        if t.name in names and t.role == "local" and t.memory == hda.memory("l0").name
        else t
        for t in plan.tiles
    )
    return plan if tiles == plan.tiles else replace(plan, tiles=tiles)
