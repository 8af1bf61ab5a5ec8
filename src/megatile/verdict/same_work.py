"""Whether two Plans do the same work: what they write and read of tensors, and what is padding in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.expr import symbols
from megatile.plan import model as pm
from megatile.plan.statements import reads_of, write_of

MAX_ROUNDS = 2000
"""Rounds of loops that are looked at, for all units at once; beyond them nothing is known."""
MAX_BOXES = 1 << 18
"""Parts of a tensor that are looked at."""
MAX_GRID = 1 << 22
"""Cells of the grid that the edges of these parts make."""
MAX_KEY = 1 << 62
"""Numbers from which on rows are not told apart by one number each."""
Env = dict[str, Any]


def _unique(rows: np.ndarray) -> np.ndarray:
    """Return rows of small numbers, each once."""
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    sizes = flat.max(axis=0, initial=0) + 1
    if prod(map(int, sizes)) >= MAX_KEY:
        return np.unique(rows, axis=0)
    keys = flat @ np.concatenate(
        ([1], np.cumprod(sizes[:-1]))
    )  # one number for each row: that is fast to sort
    return rows[np.unique(keys, return_index=True)[1]]


class _Unknown(Exception):
    """What is asked for depends on data, or is too much to count."""


@dataclass
class Touched:
    """The parts of a tensor that all units read, or write: rows of (first, end) for each dimension."""

    boxes: list[np.ndarray] = field(default_factory=list)
    unknown: bool = False

    @property
    def nothing(self) -> bool:
        """Whether no part is touched."""
        return not self.unknown and not any(map(len, self.boxes))

    @property
    def ends(self) -> list[int] | None:
        """Where the last part ends along each dimension."""
        known = [box for box in self.boxes if len(box)]
        return None if self.unknown or not known else list(np.concatenate(known).max(axis=0)[:, 1].tolist())

    @property
    def elements(self) -> int | None:
        """How many elements the parts have together, each counted once."""
        if self.unknown or not self.boxes:
            return None
        boxes = _unique(np.concatenate(self.boxes))
        edges = [np.unique(boxes[:, d]) for d in range(boxes.shape[1])]
        shape = tuple(map(len, edges))
        if len(boxes) > MAX_BOXES or prod(shape) > MAX_GRID:
            return None
        count = np.zeros(shape, np.int64)
        for corner in np.ndindex(*(2,) * len(shape)):
            at = tuple(
                np.searchsorted(e, boxes[:, d, c]) for d, (e, c) in enumerate(zip(edges, corner, strict=True))
            )
            np.add.at(count, at, (-1) ** sum(corner))
        for d in range(len(shape)):
            count = count.cumsum(axis=d)
        sizes = count > 0
        for d, edge in enumerate(edges):
            along = np.diff(edge, append=edge[-1])
            sizes = sizes * along.reshape([-1 if at == d else 1 for at in range(len(shape))])
        return int(sizes.sum())


@cached_in_owner
def written(plan: pm.Plan) -> dict[str, Touched]:
    """Return the parts of tensors that are written, those of loops in every round."""
    return _touched(plan, writes=True)


@cached_in_owner
def read(plan: pm.Plan) -> dict[str, Touched]:
    """Return the parts of tensors that are read, those of loops in the first and the last round."""
    return _touched(plan, writes=False)


def _touched(plan: pm.Plan, writes: bool) -> dict[str, Touched]:
    tiles = {t.name: t for t in plan.tiles if t.role != "local"}
    found = {name: Touched() for name in tiles}
    of = (lambda s: [write_of(s)]) if writes else (lambda s: list(reads_of(s)))
    for stream in plan.streams:
        try:
            for s, env, active in _commands(stream, tiles, of, ends_alone=not writes):
                for region in of(s):
                    if region is not None and region.tile in tiles:
                        _add(found[region.tile], plan, stream, tiles[region.tile], region, env, active)
        except _Unknown:
            for s in pm.statements(stream.body):
                for region in of(s):
                    if region is not None and region.tile in tiles:
                        found[region.tile].unknown = True
    return found


def _add(
    one: Touched, plan: pm.Plan, stream: pm.Stream, tile: pm.Tile, region: pm.Region, env: Env, active: Any
) -> None:
    per = plan.per(stream.level, tile.level)
    owner = env["unit"] // per if region.at is None and per else None
    try:
        owner = _value(region.at, env) if region.at is not None else owner
        starts = [_value(e, env) for e in region.start] or [0] * len(tile.shape)
        sizes = [_value(e, env) for e in region.shape] or list(tile.shape)
    except _Unknown:
        owner = None
    if owner is None:
        one.unknown = True
        return
    rows = np.zeros((len(env["unit"]), len(tile.shape) + 1, 2), np.int64)
    rows[:, 0, 0], rows[:, 0, 1] = owner, owner + 1
    for d, (start, size, length) in enumerate(zip(starts, sizes, tile.shape, strict=True), start=1):
        rows[:, d, 0] = np.clip(start, 0, length)
        rows[:, d, 1] = np.clip(start + size, 0, length)
    one.boxes.append(_unique(rows[active & (rows[:, :, 1] > rows[:, :, 0]).all(axis=1)]))


def _commands(stream: pm.Stream, tiles: Any, of: Any, ends_alone: bool) -> Iterator[tuple[Any, Env, Any]]:
    """Yield the commands that touch tensors, with what is known there of all units at once, and which of
    them do it; of loops the first and the last round alone, if that is enough."""
    units = np.concatenate([np.arange(*run) for run in stream.units])
    left = MAX_ROUNDS

    def touches(s: Any) -> bool:
        return any(r is not None and r.tile in tiles for m in pm.statements((s,)) for r in of(m))

    def visit(body: tuple[Any, ...], env: Env, active: Any) -> Iterator[tuple[Any, Env, Any]]:
        nonlocal left
        for s in body:
            if not touches(s):
                continue
            if isinstance(s, pm.Loop):
                start, stop, step = (_value(e, env) for e in (s.start, s.stop, s.step))
                count = np.maximum(0, -((start - stop) // step)) * np.ones(len(units), np.int64)
                most = int(count[active].max(initial=0))
                rounds = {0, 1} if ends_alone else range(most)
                left -= min(len(rounds), most)
                if left < 0:
                    raise _Unknown
                for number in rounds if most else ():
                    here = count - 1 if ends_alone and number else number
                    yield from visit(s.body, env | {s.index: start + here * step}, active & (count > here))
            elif isinstance(s, pm.If):
                try:
                    taken = np.asarray(_value(s.condition, env), bool)
                except _Unknown:
                    if not ends_alone:
                        raise
                    taken = None
                yield from visit(s.body, env, active if taken is None else active & taken)
                yield from visit(s.orelse, env, active if taken is None else active & ~taken)
            else:
                yield s, env, active

    return visit(stream.body, {"unit": units}, np.ones(len(units), bool))


def _value(expr: Any, env: Env) -> Any:
    if not symbols(expr) <= env.keys():
        raise _Unknown
    return expr.evaluate(env)


def leaves_out(one: pm.Plan, other: pm.Plan) -> bool:
    """Whether the other Plan writes fewer elements of a tensor of the same shape, or ends before its reads of
    one end, or reads nothing of one."""
    shapes = [{t.name: t.shape for t in plan.tiles if t.role != "local"} for plan in (one, other)]
    same = [name for name, shape in shapes[0].items() if shapes[1].get(name) == shape]
    for name in same:
        before, after = (written(plan)[name].elements for plan in (one, other))
        if before is not None and after is not None and after < before:
            return True
    for name in same:
        ends, others = (read(plan)[name].ends for plan in (one, other))
        if ends is not None and read(other)[name].nothing:
            return True
        if ends is not None and others is not None and any(b < a for a, b in zip(ends, others, strict=True)):
            return True
    return False


@cached_in_owner
def useful_share(plan: pm.Plan) -> float:
    """Return the least share of the work that is not on elements beyond the edges of tensors: what copies
    between tensors and tiles fill of these."""
    tiles = {t.name: t for t in plan.tiles}
    full, used = dict[str, float](), dict[str, float]()

    def of(s: Any) -> list[Any]:
        return [write_of(s), *reads_of(s)] if isinstance(s, pm.Compute) and s.engine == "dma" else []

    tensors = {name for name, t in tiles.items() if t.role != "local"}
    for stream in plan.streams:
        try:
            for s, env, active in _commands(stream, tensors, of, ends_alone=False):
                there = [r for r in of(s) if r.tile in tensors]
                near = [r for r in of(s) if r.tile not in tensors]
                if len(there) == len(near) == 1 and there[0].shape:
                    elements = prod(_value(e, env) for e in there[0].shape) * np.ones(len(active))
                    name = there[0].tile
                    used[name] = used.get(name, 0) + float(elements[active].sum())
                    full[name] = full.get(name, 0) + prod(tiles[near[0].tile].shape) * int(active.sum())
        except _Unknown:
            continue
    shares = sorted(min(1.0, used[name] / full[name]) for name in full if full[name])
    return sqrt(prod(shares[:3]))
