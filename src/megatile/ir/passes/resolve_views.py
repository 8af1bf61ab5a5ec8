"""Views become regions of what they are views of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.expr import Const, Expr, Symbol, binary, bounds, known, rebuild, simplify
from megatile.core.expr.typing import apply
from megatile.core.placement import Shard
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Pick, Rank, has_loads, loads
from megatile.ir.launch import ROOT, Launch
from megatile.ir.passes.driver import steps
from megatile.ir.passes.normalise import Normalise
from megatile.ir.program import Binding, Program, bindings, part_name
from megatile.ir.shares import Cut, Listed, ViewError, shares


@dataclass(frozen=True)
class ResolveViews:
    """Write every region as a box of its tensor or tile; the declarations keep how it is divided.

    ``a = view("A", shard(0), "device"); copy(t[0::4], a[anchor(k * 4, 4)])`` →
    ``copy(t[0::4], A.device[rank("device", "launch") * 16 + k * 4::4])``, with
    ``A: f32[64] @ part("device", shard(0))``.

    ``A.device`` is the device's own part of ``A``, with the indices of ``A``. Where it is not certain that a
    region lies inside, ``clip(start, extent, low, high)`` says where the edge is; ``pick(i, unit, sets)`` is
    the index of the i-th element of a unit whose elements are no run.
    """

    name: str = "resolve_views"

    def apply(self, program: Program) -> Program:
        table_ = bindings(program)
        chains: dict[str, dict[str, n.Chain]] = {}
        for one in table_.values():
            if one.views:
                chain = tuple(replace(v, name="", source="") for v in one.views)
                chains.setdefault(one.base, {}).setdefault(part_name(one.base, chain), chain)
        parts = {base: tuple(found.values()) for base, found in chains.items()}
        params = tuple(replace(p, parts=parts.get(p.name, p.parts)) for p in program.params)
        body = _Resolver(program.launch, table_, parts).body(program.body, _Unit(program.launch))
        return replace(program, params=params, body=body)


@dataclass(frozen=True)
class _Unit:
    """Where code runs: the depths of its group and of those around it; ``peer`` is the number of another unit
    of a group, which is meant instead."""

    launch: Launch
    group: tuple[int, int] = (0, 0)
    around: tuple[tuple[int, int], ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    peer: tuple[Expr, tuple[int, int]] | None = None

    def inside(self, scale: str) -> _Unit:
        group = (self.group[1], self.launch.depth(scale))
        return replace(self, group=group, around=(*self.around, self.group))

    def knowing(self, name: str, limits: tuple[int, int] | None) -> _Unit:
        ranges = {k: v for k, v in self.ranges.items() if k != name}
        return replace(self, ranges=ranges | ({name: limits} if limits is not None else {}))

    def rank(self, low: int, high: int) -> Expr:
        """The number of the unit at depth ``high`` among those below its ancestor at depth ``low``."""
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

    def other(self, number: Expr | None, axis: int | None, scale: str | None) -> _Unit:
        """The unit that a put, get or atomic names by its number (along ``axis``) in this group, or in that
        of a scale around it."""
        if number is None:
            return self
        group = self.group
        if scale is not None:
            wanted = self.launch.depth(scale)
            group = next(g for g in (group, *reversed(self.around)) if g[1] == wanted)
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

    def interval(self, value: Expr) -> tuple[int, int] | None:
        """The least and the largest value of an expression."""
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
        """Whether ``size`` elements from ``start`` surely lie in 0..length."""
        if isinstance(start, Const) and isinstance(size, Const) and isinstance(length, Const):
            return bool(0 <= start.value <= length.value - size.value)
        low = self.interval(start)
        over = self.interval(binary("-", binary("+", start, size), length))
        return low is not None and low[0] >= 0 and over is not None and over[1] <= 0


class _Resolver:
    def __init__(self, launch: Launch, names: dict[str, Binding], parts: dict[str, tuple[n.Chain, ...]]):
        self.launch, self.names, self.parts = launch, names, parts

    def body(self, body: tuple[n.Node, ...], unit: _Unit) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if isinstance(node, n.View):
                continue
            changed = self.statement(node, unit)
            if isinstance(changed, n.Scale) and not changed.body:
                continue  # it had views only
            result.append(changed)
            if isinstance(node, n.ReadScalar) and node.bound is not None:
                unit = unit.knowing(node.name, (0, node.bound))
            elif isinstance(node, n.Let):
                unit = unit.knowing(node.name, None)
            for inner in n.each(n.Let, (node,)):
                unit = unit.knowing(inner.name, None)
        return tuple(result)

    def statement(self, node: n.Node, unit: _Unit) -> n.Node:
        inner = unit
        if isinstance(node, n.Scale):
            inner = unit.inside(node.scale)
        elif isinstance(node, n.Loop):
            low, high = unit.interval(node.start), unit.interval(node.stop)
            fits = low is not None and high is not None and (known(node.step) or 0) > 0
            inner = self.changing(node, unit).knowing(
                node.var, (low[0], max(low[0], high[1] - 1)) if fits and low and high else None
            )
        elif isinstance(node, n.Parallel):
            for name, extent in zip(node.vars, node.extents, strict=True):
                found = unit.interval(extent)
                inner = inner.knowing(name, None if found is None else (0, max(found[1] - 1, 0)))
        node = n.with_bodies(node, lambda part: self.body(part, inner))
        try:
            return self.own(node, inner if isinstance(node, n.Parallel) else unit)
        except MegatileError as error:
            error.place = error.place or node.place
            raise

    @staticmethod
    def changing(node: n.Loop, unit: _Unit) -> _Unit:
        """Nothing is known of what the rounds of a loop change."""
        for inner in n.walk(node.body):
            if isinstance(inner, (n.Let, n.ReadScalar)):
                unit = unit.knowing(inner.name, None)
        return unit

    def own(self, node: n.Node, unit: _Unit) -> n.Node:
        """The statement itself, without what is in its bodies."""
        change: dict[str, Any] = {}
        axis, scale = getattr(node, "axis", None), getattr(node, "scale", None)
        if isinstance(node, n.Alloc):
            return replace(node, parts=self.parts.get(node.name, node.parts))
        if isinstance(node, n.Reshape):
            return replace(node, source=self.names[node.source].base)
        if isinstance(node, n.Collective) and node.kind == "gather_view":
            change["dim"] = self.divided_dim(node.to[0].source)
        for one in fields(node):
            value = getattr(node, one.name)
            if one.name in ("span", "body", "orelse") or value is None:
                continue
            there = unit
            if one.name in ("to", "target", "index") and not isinstance(node, (n.Signal, n.Collective)):
                there = unit.other(self.number(node, "dst", unit), axis, scale)
            elif one.name == "source" and not isinstance(node, n.Collective):
                there = unit.other(self.number(node, "src", unit), axis, scale)
            if one.name == "index":
                name = node.flag if isinstance(node, (n.Signal, n.Wait)) else getattr(node, "target", "")
                value = self.element(name, tuple(self.value(i, unit) for i in value), there)
            elif one.name in ("target", "flag") and isinstance(value, str):
                value = self.named(value)
            else:
                value = self.value(value, unit, there)
            if value is not getattr(node, one.name):
                change[one.name] = value
        return replace(node, **change) if change else node

    def number(self, node: n.Node, which: str, unit: _Unit) -> Expr | None:
        value = getattr(node, which, None)
        return None if value is None else self.value(value, unit)

    def value(self, value: Any, unit: _Unit, there: _Unit | None = None) -> Any:
        """A field of a statement; regions are those of unit ``there``."""
        if isinstance(value, n.Region):
            return self.region(value, unit, there or unit)
        if isinstance(value, tuple):
            return tuple(self.value(v, unit, there) for v in value)
        if not isinstance(value, Expr):
            return value
        if not any(self.names[load.source].views for load in loads(value)):
            return value
        return rebuild(value, lambda part: self.load(part, unit) if isinstance(part, Load) else part)

    def load(self, load: Load, unit: _Unit) -> Load:
        return Load(self.named(load.source), self.element(load.source, load.index, unit), load.dtype)

    # --- names ------------------------------------------------------------------------------------

    def named(self, name: str) -> str:
        """The name, in a Program without views."""
        binding = self.names[name]
        return part_name(binding.base, binding.views) if binding.views else name

    def divided_dim(self, name: str) -> int:
        layouts = [view.layout for view in self.names[name].owner]
        return next((layout.dim for layout in layouts if isinstance(layout, Shard)), 0)

    def shares(self, name: str, unit: _Unit) -> Sequence[Cut | Listed]:
        """A unit's part of every dimension."""
        binding = self.names[name]
        low = self.launch.depth(self.names[binding.base].scale)
        return shares(self.launch, binding.views, binding.shape, low, unit.rank)

    # --- regions and elements ---------------------------------------------------------------------

    def region(self, region: n.Region, unit: _Unit, there: _Unit) -> n.Region:
        """A region as one of its tensor or tile; ``there`` is the unit whose it is."""
        binding = self.names[region.source]
        plain = binding.scale != ROOT and not binding.views and region.along is None
        if (
            plain
            and not any(d.anchored for d in region.dims)
            and not any(map(has_loads, region.expressions()))
        ):
            return region
        origin = self.shares(region.along, unit) if region.along is not None else []
        if any(isinstance(share, Listed) for share in origin):
            raise ViewError(
                f"an anchor along '{region.along}', whose elements are scattered, cannot be resolved",
                advice="give explicit slices",
            )
        spare = len(region.dims) - len(region.extents)
        dims = []
        found = self.shares(region.source, there)
        for d, (dim, share) in enumerate(zip(region.dims, found, strict=True)):
            start = self.value(dim.start, unit)
            if origin and dim.extent is not None:
                start = _plus(start, origin[d - spare][0])  # type: ignore[index]
            extent = None if dim.extent is None else self.value(dim.extent, unit)
            length = self.names[region.source].shape[d]
            dims.append(self.dim(region, replace(dim, start=start, extent=extent), share, length, unit))
        return n.Region(self.named(region.source), tuple(dims))

    def dim(self, region: n.Region, dim: n.Dim, share: Cut | Listed, length: int, unit: _Unit) -> n.Dim:
        if isinstance(share, Listed):
            return replace(dim, start=Pick(dim.start, share.row, share.sets))
        low, size = share
        start = _plus(low, dim.start)
        if dim.extent is None or dim.limits is not None:
            return replace(dim, start=start)
        tensor = self.names[self.names[region.source].base].scale == ROOT
        anchored = dim.anchored or tensor
        if not anchored or unit.is_inside(dim.start, dim.extent, size):
            return n.Dim(start, dim.extent)
        return n.Dim(start, dim.extent, True, (low, simplify(binary("+", low, size))))

    def element(self, name: str, index: tuple[Expr, ...], there: _Unit) -> tuple[Expr, ...]:
        """An index of a name as one of its tensor or tile."""
        if not self.names[name].views:
            return index
        found: list[Expr] = []
        for share, at in zip(self.shares(name, there), index, strict=True):
            if isinstance(share, Listed):
                found.append(Pick(at, share.row, share.sets))
            else:
                found.append(_plus(share[0], at))
        return tuple(found)


def _plus(left: Expr, right: Expr) -> Expr:
    if known(left) == 0:
        return right
    return simplify(binary("+", left, right)) if right.dtype == "int" else apply("+", left, right)


def without_views(program: Program) -> Program:
    """The Program that code is written from: after ``Normalise`` and ``ResolveViews``."""
    *_, last = steps(program, (Normalise(), ResolveViews()))
    return last.program
