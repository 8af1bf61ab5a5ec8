"""Copies of tiles that are spread over units: how many links their routes cross, before any is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import constant, symbols
from megatile.plan import model as pm
from megatile.plan.residency import part_places
from megatile.timing.machine_timing import TimingError

if TYPE_CHECKING:
    from megatile.sim.launch_rows import LaunchRows

SAMPLED_UNITS = 32
"""Units whose routes are looked at to estimate those of all."""
GUESSED_ROUNDS = 8
"""Rounds of a loop whose trip count is no constant."""


def check_routes(launched: LaunchRows, most: int) -> None:
    """Refuse a launch whose copies of spread tiles cross more than ``most`` links in all."""
    crossed = sum(_crossed(launched, stream) for stream in launched.plan.streams)
    if crossed > most:
        raise TimingError(
            f"the copies of plan '{launched.plan.name}' from and to tiles that are spread over units cross "
            f"about {crossed:.2g} links: too many to be simulated one by one",
            advice="mt.price bounds its time without running it; larger blocks or fewer units copy less",
        )


def _crossed(launched: LaunchRows, stream: pm.Stream) -> float:
    """About how many links the copies of a stream cross."""
    plan, crossed = launched.plan, 0.0
    spread = {tile.name: tile for tile in plan.tiles if tile.over is not None}
    numbers = np.linspace(0, stream.unit_count() - 1, SAMPLED_UNITS).astype(np.int64)
    for s, times, indices in _repeated(stream.body, 1, {}) if spread else ():
        for region in (*s.reads[:1], s.write) if s.engine == "dma" else ():
            tile, known = spread.get(region.tile), {**indices, "unit": numbers}
            if tile is None or tile.over != stream.level or region.at is not None:
                continue
            block = tile.block_of(region)
            if symbols(block) <= known.keys():
                there = np.broadcast_to(block.evaluate(known), numbers.shape)
                crossed += times * stream.unit_count() * _mean_hops(launched, tile, numbers, there)
    return crossed


def _mean_hops(launched: LaunchRows, tile: pm.Tile, units: Any, blocks: Any) -> float:
    """The links between units and blocks of a tile, on average."""
    view = launched.views[launched.table.levels[str(tile.over)]]
    ends = [part_places(launched.plan, view.hda, tile, *which) for which in ((None, units), (blocks,))]
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
            known = [constant(e) for e in (s.start, s.stop, s.step)]
            rounds = range(GUESSED_ROUNDS) if None in known else range(*known)  # type: ignore[arg-type]
            if rounds:
                middle = {s.index: rounds[len(rounds) // 2]}
                yield from _repeated(s.body, times * len(rounds), indices | middle)
        elif isinstance(s, pm.If):
            yield from _repeated((*s.body, *s.orelse), times, indices)
        elif isinstance(s, pm.Compute):
            yield s, times, indices
