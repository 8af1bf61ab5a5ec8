"""Products on devices whose PEs reach all of the device's memory: a work-group for each tile of the sum."""

from __future__ import annotations

from typing import Any, NamedTuple

from megatile.core.dtypes import itemsize
from megatile.core.expr import ZERO, minimum, unit
from megatile.hda import HDA
from megatile.hda.addresses import DeviceShape
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan, Work

SIDES = (16, 32, 64, 128, 256)
"""Rows and columns that a tile of the result may have."""
DEPTH_BYTES = 128
"""Bytes of a row of the tiles that are multiplied: a line of a cache."""
STAGES = 3
"""Buffers of these tiles: while one is multiplied, the next come."""
LOAD = 32
"""What a loaded element counts against a product in the choice of tiles, on every machine: a preference for
large tiles, no time."""


class ProductTiles(NamedTuple):
    """The tile of the result that a PE works on at a time, and the depth of those that are multiplied."""

    rows: int
    columns: int
    depth: int


def choose_tiles(
    m: int, k: int, width: int, shards: int, dtype: str, machine: HDA, shape: DeviceShape
) -> ProductTiles:
    """Choose the tiles of a result of ``shards`` × ``width`` columns: those that fit and take least, with all
    PEs at work. Columns are whole shards, or even parts of one."""
    pes, size = shape.cubes * shape.pes, itemsize(dtype)
    depth = min(k, max(1, DEPTH_BYTES // size))
    registers, near = machine.memory("l0"), machine.memory("l1")
    sides = [width * f for f in range(1, shards + 1) if shards % f == 0 and width * f <= SIDES[-1]]
    sides += [d for d in range(1, SIDES[-1] + 1) if width % d == 0]
    found = []
    for rows in (min(m, side) for side in SIDES):
        for columns in sides:
            sums, operands = 4 * rows * columns, STAGES * (rows + columns) * depth * size
            room = near.available - (sums if registers is near else 0)
            if operands <= room and sums <= registers.available // 2:
                turns = -(-(-(-m // rows) * (shards * width // columns)) // pes)
                found.append((turns * (rows * columns + LOAD * (rows + columns)), rows, columns))
    _, rows, columns = min(found, default=(0, 1, 1))
    return ProductTiles(rows, columns, depth)


def product_plan(
    m: int, k: int, width: int, shards: int, dtype: str, machine: HDA, shape: DeviceShape
) -> Plan:
    """Return the plan of ``y = x @ w``: ``x`` and ``w`` in one piece, ``y`` in ``shards`` of some columns."""
    n = width * shards
    tiles = choose_tiles(m, k, width, shards, dtype, machine, shape)
    across = n // tiles.columns
    total = -(-m // tiles.rows) * across
    b = PlanBuilder("matmul", scale="device", units=1)
    pe = b.level(shape.pe_scale, scale=shape.pe_scale, grid=(total,), parent="device", slots=1)
    one: dict[str, Any] = {"memory": shape.hbm, "owner": ZERO, "owners": 1, "role": "input"}
    x, w = b.tile("x", (m, k), dtype, **one), b.tile("w", (k, n), dtype, **one)
    y = b.tile("y", (m, width), dtype, **(one | {"owners": shards, "role": "output"}))
    wide = "f32" if dtype in ("f16", "bf16", "f32") or dtype.startswith("f8") else dtype
    near, registers = machine.memory("l1").name, machine.memory("l0").name
    left = b.tile("left", (tiles.rows, tiles.depth), dtype, memory=near, versions=STAGES, level=pe)
    right = b.tile("right", (tiles.depth, tiles.columns), dtype, memory=near, versions=STAGES, level=pe)
    sums = b.tile("sums", (tiles.rows, tiles.columns), wide, memory=registers, level=pe)

    with b.stream(level=pe):
        top, start = unit // across * tiles.rows, unit % across * tiles.columns
        rows, columns = _extent(m, top, tiles.rows), tiles.columns
        part = sums[0:rows, 0:columns]
        b.compute("fill", part, value=0.0)
        with b.loop(0, -(-k // tiles.depth)) as step:
            at = step.index * tiles.depth
            depth = _extent(k, at, tiles.depth)
            b.copy(left[0:rows, 0:depth], x[top : top + rows, at : at + depth], fresh=True)
            b.copy(right[0:depth, 0:columns], w[at : at + depth, start : start + columns], fresh=True)
            operands = [left[0:rows, 0:depth], right[0:depth, 0:columns], part]
            work = Work(ZERO + rows * columns * depth * 2, ZERO, dtype)
            b.compute("gemm_add", part, operands, engine="tensor", work=work)
        wide_part = min(width, columns)
        for piece in range(columns // wide_part):
            low, first = piece * wide_part, start + piece * wide_part
            inside = first % width if width > wide_part else 0
            target = y[top : top + rows, inside : inside + wide_part].at(first // width)
            b.copy(target, sums[0:rows, low : low + wide_part])
    return b.finish()


def _extent(whole: int, start: Any, size: int) -> Any:
    """Return what of ``size`` elements from ``start`` is inside."""
    return size if whole % size == 0 else minimum(whole - start, size)
