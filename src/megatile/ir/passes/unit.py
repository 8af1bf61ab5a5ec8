"""Where a statement of a Program runs, and what is known of the numbers there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from megatile.core.expr import Binary, Const, Expr, Symbol, binary, bounds, known, rebuild, simplify
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Rank
from megatile.ir.launch import Launch


@dataclass(frozen=True)
class Unit:
    """Where code runs: the depths of its group and of those around it; ``peer`` is the number of another unit
    of a group, which is meant instead."""

    launch: Launch
    group: tuple[int, int] = (0, 0)
    around: tuple[tuple[int, int], ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    peer: tuple[Expr, tuple[int, int]] | None = None

    def within(self, node: n.Node) -> Unit:
        """Return the unit, and what is known of numbers, in the statements inside a statement."""
        if isinstance(node, n.ScaleRegion):
            group = (self.group[1], self.launch.depth(node.scale))
            return replace(self, group=group, around=(*self.around, self.group))
        if isinstance(node, n.Loop):
            low, high = self.interval(node.start), self.interval(node.stop)
            counts = low is not None and high is not None and (known(node.step) or 0) > 0
            limits = (low[0], max(low[0], high[1] - 1)) if counts and low and high else None
            return self._without(node.body).knowing(node.var, limits)
        unit = self
        for name, extent in zip(node.vars, node.extents, strict=True) if isinstance(node, n.Parallel) else ():
            found = self.interval(extent)
            unit = unit.knowing(name, None if found is None else (0, max(found[1] - 1, 0)))
        return unit

    def after(self, node: n.Node) -> Unit:
        """Return what is known once a statement is done."""
        if isinstance(node, n.ReadScalar):
            return self.knowing(node.name, None if node.bound is None else (0, node.bound))
        return self._without((node,)) if isinstance(node, (n.Let, n.Loop, n.If, n.ScaleRegion)) else self

    def _without(self, body: tuple[n.Node, ...]) -> Unit:
        """Nothing is known of the numbers that statements change."""
        if not self.ranges:
            return self
        changed = {m.name for m in n.walk(body) if isinstance(m, (n.Let, n.ReadScalar))}
        if not changed & self.ranges.keys():
            return self
        return replace(self, ranges={k: v for k, v in self.ranges.items() if k not in changed})

    def knowing(self, name: str, limits: tuple[int, int] | None) -> Unit:
        ranges = {k: v for k, v in self.ranges.items() if k != name}
        return replace(self, ranges=ranges | ({name: limits} if limits is not None else {}))

    def rank(self, low: int, high: int) -> Expr:
        """Return the number of the unit at depth ``high`` among those below its ancestor at depth ``low``."""
        scales = self.launch.scales[low:high]
        if math.prod(s.count for s in scales) == 1:
            return Const(0)
        if self.peer is None or high <= self.peer[1][0] or self.peer[1][1] <= low:
            return Rank(self.launch.at(high), self.launch.at(low))
        number, (first, last) = self.peer
        if (low, high) == (first, last):
            return number
        result: Expr = Const(0)
        for at in range(low, high):
            scale, below = (
                self.launch.scales[at],
                math.prod(s.count for s in self.launch.scales[at + 1 : last]),
            )
            index: Expr = Rank(scale.name, self.launch.at(at))
            if first <= at < last:
                index = binary("//", number, below)
                index = index if at == first else binary("%", index, scale.count)
            result = binary("+", binary("*", result, scale.count), index)
        return result

    def group_of(self, scale: str | None) -> tuple[int, int]:
        """Return the depths of the innermost region, or of that of a scale around it."""
        if scale is None:
            return self.group
        wanted = self.launch.depth(scale)
        return next(g for g in (self.group, *reversed(self.around)) if g[1] == wanted)

    def other(self, number: Expr | None, axis: int | None, scale: str | None) -> Unit:
        """Return the unit that a put, get or atomic names by its number (along ``axis``) in this group, or in
        that of a scale around it."""
        if number is None:
            return self
        group = self.group_of(scale)
        if axis is not None:
            mine = self.rank(*group)
            grid = self.launch.grid(self.launch.at(group[1]), self.launch.at(group[0]))
            stride = math.prod(grid[:axis])
            along = binary("%", binary("//", mine, stride), grid[axis])
            number = simplify(binary("+", mine, binary("*", binary("-", number, along), stride)))
        found, count = self.interval(number), math.prod(s.count for s in self.launch.scales[slice(*group)])
        if found is None or found[0] < 0 or found[1] >= count:
            number = binary("%", number, count)  # under a condition that rules the others out
        return replace(self, peer=(number, group))

    def is_itself(self, number: Expr, axis: int | None, group: tuple[int, int]) -> bool:
        """Return whether a number in a group (along ``axis``) is surely that of this unit."""
        if isinstance(number, Binary) and number.operator == "%":
            found, size = self.interval(number.left), known(number.right)
            if found is not None and size is not None and 0 <= found[0] <= found[1] < size:
                number = number.left
        return axis is None and number == self.rank(*group)

    def interval(self, value: Expr) -> tuple[int, int] | None:
        """Return the least and the largest value of an expression."""
        if isinstance(value, Const):
            return value.value, value.value
        ranges = dict(self.ranges)

        def named(part: Expr) -> Expr:
            if not isinstance(part, (Coord, Rank)):
                return part
            name = part.text()
            count = (
                self.launch.extents(part.scale)[part.axis]
                if isinstance(part, Coord)
                else self.launch.count(part.scale, part.within)
            )
            ranges[name] = (0, count - 1)
            return Symbol(name)

        return bounds(simplify(rebuild(value, named)), ranges)

    def is_inside(self, start: Expr, size: Expr, length: Expr) -> bool:
        """Return whether ``size`` elements from ``start`` surely lie in 0..length."""
        found = self.interval(start)
        if found is None or found[0] < 0:
            return False
        if isinstance(size, Const) and isinstance(length, Const):
            return bool(found[1] <= length.value - size.value)
        over = self.interval(binary("-", binary("+", start, size), length))
        return over is not None and over[1] <= 0
