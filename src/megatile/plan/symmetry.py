"""Find out whether all units of a plan do the same: then one unit, sending to itself, represents all.

The condition is that turning all units by one changes nothing that decides time. So the only stream covers
all units; trip counts, conditions, sizes and members do not name the unit; peers are ``(unit + c) % n``;
blocks of a tile begin at places that do not depend on the unit, or at ``((± unit + c) % n) * block`` with at
most ``block`` elements (whether two of them are the same block then does not depend on the unit either). Then
a message that a unit receives is, in time, the one that it sends itself, as long as the machine treats all
units alike (`sim.symmetry`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatile.core.expr import (
    ZERO,
    Binary,
    Expr,
    Symbol,
    bounds,
    constant,
    from_linear,
    linear,
    symbols,
    trips,
    unit,
)
from megatile.plan import model as pm
from megatile.plan.statements import int_flows, regions_of, rewritten, write_of


def one_unit(plan: pm.Plan) -> pm.Plan:
    """Return the plan of unit 0 alone, sending to itself."""
    channels = tuple(replace(channel, source=ZERO) for channel in plan.channels)
    stream = replace(plan.streams[0], units=((0, 1, 1),), body=rewritten(plan.streams[0].body, _to_itself))
    return replace(plan, grid=(1,), place=ZERO, channels=channels, streams=(stream,))


def difference(plan: pm.Plan) -> str | None:
    """Return the first thing in which units may differ; None where all do the same."""
    if plan.units < 2:
        return "there is one"
    if plan.levels or len(plan.streams) != 1 or plan.streams[0].unit_count() != plan.units:
        return "they have several streams or levels"
    if any(c.installed for c in plan.channels) or any(f.installed for f in plan.flags):
        return "messages or signals may outlive the launch"
    if any(tile.shared or tile.offset is not None for tile in plan.tiles):
        return "they share tiles, or name addresses"
    return None if _alike_in_the_plan(plan) else "they differ in what they do"


def _to_itself(statement: pm.Statement) -> pm.Statement:
    return replace(statement, to=ZERO) if isinstance(statement, pm.Send) else statement


def _same(*expressions: Expr | None) -> bool:
    """Return whether expressions do not depend on the unit."""
    return all(e is None or "unit" not in symbols(e) for e in expressions)


def _turning(node: Expr, units: int) -> int | None:
    """Return the sign of the unit in ``(± unit + c) % units``; None for other expressions."""
    if isinstance(node, Symbol) and node.name == "unit":
        return 1
    if isinstance(node, Binary) and node.operator == "%" and constant(node.right) == units:
        sign = _factor(node.left)
        return sign if sign in (1, -1) else None
    return None


def _factor(node: Expr) -> int | None:
    """By how much the unit counts in a sum; None where it is more than a sum."""
    terms, _ = linear(node)
    factor = terms.pop(unit, 0)
    return factor if _same(*terms) else None


def _alike_in_the_plan(plan: pm.Plan) -> bool:
    n = plan.units
    if any(_turning(c.source, n) != 1 for c in plan.channels):
        return False
    written: set[str] = set()
    blocks: dict[tuple[str, int], Any] = {}
    every = list(pm.statements(plan.streams[0].body))
    for statement in every:
        if not _alike(statement, n):
            return False
        write = write_of(statement)
        written |= {write.tile} if write is not None else set()
    ranges = _ranges(every)
    declared = {tile.name for tile in plan.tiles}
    if written - declared:
        written |= declared
    for statement in every:
        for region in regions_of(statement):
            for axis, (start, extent) in enumerate(zip(region.start, region.shape, strict=True)):
                kind = _block_of(start, extent, n, ranges)
                if kind is None or (kind != "same" and region.tile not in declared):
                    return False
                known = blocks.setdefault((region.tile, axis), kind)
                if known != kind and region.tile in written:
                    return False
    return True


def _alike(statement: Any, n: int) -> bool:
    """Return whether a statement takes the same time in every unit."""
    if any(region.at is not None for region in regions_of(statement)):
        return False
    work = getattr(statement, "work", None)
    if work is not None and not _same(work.flops, work.bytes):
        return False
    flows = [value for flow in int_flows(statement) for value in flow.values]
    if isinstance(statement, pm.Send):
        return _turning(statement.to, n) == 1 and _same(statement.member)
    if isinstance(statement, pm.Receive):
        return _same(statement.member, *statement.shape)
    if isinstance(statement, pm.Loop):
        return _same(statement.start, statement.stop, statement.step, *flows)
    if isinstance(statement, pm.If):
        return _same(statement.condition, *flows)
    return isinstance(statement, (pm.Compute, pm.Free, pm.Start))


def _block_of(start: Expr, extent: Expr, n: int, ranges: dict[str, tuple[int, int]]) -> Any:
    """``same`` for every unit, or (sign, size) of the blocks among which the unit chooses; None: neither."""
    if not _same(extent):
        return None
    if _same(start):
        return "same"
    terms, offset = linear(start)
    turning = [term for term in terms if not _same(term)]
    length = constant(extent)
    if len(turning) != 1 or length is None:
        return None
    sign, size = _turning(turning[0], n), terms[turning[0]]
    inside = {term: factor for term, factor in terms.items() if term is not turning[0]}
    within = bounds(from_linear(inside, offset), ranges)
    if sign is None or within is None or within[0] < 0 or within[1] + length > size:
        return None
    return sign, size


def _ranges(every: list[Any]) -> dict[str, tuple[int, int]]:
    """Return between which numbers the indices of loops lie, where they are known."""
    found: dict[str, tuple[int, int]] = {}
    unknown: set[str] = set()
    for loop in every:
        if isinstance(loop, pm.Loop):
            values = trips(loop)
            if values is None:
                unknown.add(loop.index)
                continue
            low, high = (min(values[0], values[-1]), max(values[0], values[-1])) if values else (0, 0)
            before = found.get(loop.index, (low, high))
            found[loop.index] = (min(low, before[0]), max(high, before[1]))
    return {name: interval for name, interval in found.items() if name not in unknown}
