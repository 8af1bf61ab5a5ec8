"""About how many links the copies of tiles cross that are spread over units, before any is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megatile.core.expr import symbols, trips
from megatile.plan import model as pm
from megatile.plan.residency import part_places
from megatile.timing.machine_timing import TimingError
from megatile.timing.resources import Resources

SAMPLED_UNITS = 32
"""Units whose routes are looked at to estimate those of all."""
GUESSED_ROUNDS = 8
"""Rounds of a loop whose trip count is no constant."""


def check_spread(resources: Resources, most: int) -> None:
    """Refuse a plan whose copies of spread tiles cross more than ``most`` links in all."""
    crossed = links_crossed(resources)
    if crossed > most:
        raise TimingError(
            f"the copies of plan '{resources.plan.name}' from and to tiles that are spread over units cross "
            f"about {crossed:.2g} links: too many to be simulated one by one",
            advice="mt.price bounds its time without running it; larger blocks or fewer units copy less",
        )


def links_crossed(whole: Resources) -> float:
    """Return about how many links the copies of a plan's spread tiles cross."""
    return sum(_crossed(whole, stream) for stream in whole.plan.streams)


def _crossed(whole: Resources, stream: pm.Stream) -> float:
    """Return about how many links the copies of a stream cross."""
    plan, crossed = whole.plan, 0.0
    spread = {tile.name: tile for tile in plan.tiles if tile.over is not None}
    numbers = np.linspace(0, stream.unit_count() - 1, SAMPLED_UNITS).astype(np.int64)
    for s, times, indices in _repeated(stream.body, 1, {}):
        for region in (*s.reads[:1], s.write) if s.engine == "dma" else ():
            tile, known = spread.get(region.tile), {**indices, "unit": numbers}
            if tile is None or tile.over != stream.level or region.at is not None:
                continue
            block = tile.block_of(region)
            if symbols(block) <= known.keys():
                there = np.broadcast_to(block.evaluate(known), numbers.shape)
                crossed += times * stream.unit_count() * _mean_hops(whole, tile, numbers, there)
    return crossed


def _mean_hops(whole: Resources, tile: pm.Tile, units: Any, blocks: Any) -> float:
    """Return the links between units and blocks of a tile, on average."""
    view = whole.of(str(tile.over)) if whole.plan.levels else whole
    ends = [part_places(whole.plan, view.hda, tile, *which) for which in ((None, units), (blocks,))]
    lengths = [
        len(view.fabric.stages(view.hardware(a), view.hardware(b))) if a != b else 0
        for a, b in zip(*(end.tolist() for end in ends), strict=True)
    ]
    return float(np.mean(lengths))


def _repeated(
    body: Any, times: int, indices: dict[str, int]
) -> Iterator[tuple[pm.Compute, int, dict[str, int]]]:
    """Yield computing commands, about how often each runs, and the middle of the loops around it."""
    for s in body:
        if isinstance(s, pm.Loop):
            rounds = trips(s)
            rounds = range(GUESSED_ROUNDS) if rounds is None else rounds
            if rounds:
                middle = {s.index: rounds[len(rounds) // 2]}
                yield from _repeated(s.body, times * len(rounds), indices | middle)
        elif isinstance(s, pm.If):
            yield from _repeated((*s.body, *s.orelse), times, indices)
        elif isinstance(s, pm.Compute):
            yield s, times, indices
