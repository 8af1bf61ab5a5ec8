"""What several files of tests/cost share."""

from __future__ import annotations

import random
from typing import Any

import megatile as mt
import megatile.language as T
from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan


def blocks(seed: int, trips: int) -> Plan:
    """Blocks in turns, each of which copies through caches and works in a long loop."""
    rng = random.Random(seed)
    b = PlanBuilder("blocks", scale="device", units=rng.choice((1, 2)))
    block = b.level(
        "block", scale="block", grid=rng.choice((3, 140)), parent="device", slots=rng.choice((1, 2))
    )
    rows = b.tile("rows", (10, 4096), "f16", memory="hbm", role="input")
    row = b.tile("row", (1, 4096), "f16", memory="shared", level=block, versions=rng.choice((1, 2)))
    total = b.tile("total", (1, 4096), "f16", memory="shared", level=block)
    with b.stream(level=block):
        b.compute("fill", total, value=1.0)
        with b.loop(0, trips) as k:
            b.copy(row, rows[(unit + k.index * rng.randrange(2)) % 10, 0:4096], fresh=rng.random() < 0.5)
            b.compute("add", total, [total, row])
    return b.finish()


AHBM = mt.machine("ahbm")


def cleared(blocks: int) -> Any:
    """Return a tile program of so many blocks."""

    @T.program
    def clear(A: T.Tensor((blocks, 64), "f32")):
        with T.Kernel(device=1, block=blocks, threads=128) as b, T.Scale("block"):
            T.clear(A[b, 0:64])

    return clear
