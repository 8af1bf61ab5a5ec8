"""Replace views by regions of what they are views of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.expr import ZERO, Expr, binary, rebuild, simplify
from megatile.core.expr.typing import apply
from megatile.core.placement import Shard
from megatile.ir import nodes as n
from megatile.ir.expr import Load, Pick, has_loads, loads
from megatile.ir.launch import ROOT, Launch
from megatile.ir.passes.driver import steps
from megatile.ir.passes.normalise import Normalise
from megatile.ir.passes.unit import Unit
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
        names = bindings(program)
        chains: dict[str, dict[str, n.Chain]] = {}
        for one in names.values():
            if one.views:
                chain = tuple(replace(v, name="", source="") for v in one.views)
                chains.setdefault(one.base, {}).setdefault(part_name(one.base, chain), chain)
        parts = {base: tuple(found.values()) for base, found in chains.items()}
        params = tuple(replace(p, parts=parts.get(p.name, p.parts)) for p in program.params)
        body = _Resolver(program.launch, names, parts).body(program.body, Unit(program.launch))
        return replace(program, params=params, body=body)


class _Resolver:
    def __init__(self, launch: Launch, names: dict[str, Binding], parts: dict[str, tuple[n.Chain, ...]]):
        self.launch, self.names, self.parts = launch, names, parts

    def body(self, body: tuple[n.Node, ...], unit: Unit) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if isinstance(node, n.View):
                continue
            changed = self.statement(node, unit)
            if isinstance(changed, n.ScaleRegion) and not changed.body:
                continue  # it had views only
            result.append(changed)
            unit = unit.after(node)
        return tuple(result)

    def statement(self, node: n.Node, unit: Unit) -> n.Node:
        node = n.with_bodies(node, lambda part: self.body(part, unit.within(node)))
        try:
            return self.own(node, unit.within(node) if isinstance(node, n.Parallel) else unit)
        except MegatileError as error:
            error.place = error.place or node.place
            raise

    def own(self, node: n.Node, unit: Unit) -> n.Node:
        """Return the statement itself, without what is in its bodies."""
        change: dict[str, Any] = {}
        axis, scale = getattr(node, "axis", None), getattr(node, "scale", None)
        if isinstance(node, n.Alloc):
            return replace(node, parts=self.parts.get(node.name, node.parts))
        if isinstance(node, n.Reshape):
            return replace(node, source=self.names[node.source].base)
        if isinstance(node, n.Collective) and node.kind == "gather_view":
            change["dim"] = self.divided_dim(node.to[0].source)
        for field in n.OWN_FIELDS[type(node)]:
            value = getattr(node, field)
            if value is None or (isinstance(value, (str, int)) and field not in ("target", "flag")):
                continue
            there = unit
            if field in ("to", "target", "index") and not isinstance(node, (n.Signal, n.Collective)):
                there = unit.other(self.number(node, "dst", unit), axis, scale)
            elif field == "source" and not isinstance(node, n.Collective):
                there = unit.other(self.number(node, "src", unit), axis, scale)
            if field == "index":
                name = node.flag if isinstance(node, (n.Signal, n.Wait)) else getattr(node, "target", "")
                value = self.element(name, tuple(self.value(i, unit) for i in value), there)
            elif field in ("target", "flag") and isinstance(value, str):
                value = self.named(value)
            else:
                value = self.value(value, unit, there)
            if value is not getattr(node, field):
                change[field] = value
        return replace(node, **change) if change else node

    def number(self, node: n.Node, which: str, unit: Unit) -> Expr | None:
        value = getattr(node, which, None)
        return None if value is None else self.value(value, unit)

    def value(self, value: Any, unit: Unit, there: Unit | None = None) -> Any:
        """Return a field of a statement; regions are those of unit ``there``."""
        if isinstance(value, n.Region):
            return self.region(value, unit, there or unit)
        if isinstance(value, tuple):
            return tuple(self.value(v, unit, there) for v in value)
        if not isinstance(value, Expr):
            return value
        if not any(self.names[load.source].views for load in loads(value)):
            return value
        return rebuild(value, lambda part: self.load(part, unit) if isinstance(part, Load) else part)

    def load(self, load: Load, unit: Unit) -> Load:
        return Load(self.named(load.source), self.element(load.source, load.index, unit), load.dtype)

    # --- names ------------------------------------------------------------------------------------

    def named(self, name: str) -> str:
        """Return the name, in a Program without views."""
        binding = self.names[name]
        return part_name(binding.base, binding.views) if binding.views else name

    def divided_dim(self, name: str) -> int:
        layouts = [view.layout for view in self.names[name].owner]
        return next((layout.dim for layout in layouts if isinstance(layout, Shard)), 0)

    def shares(self, name: str, unit: Unit) -> Sequence[Cut | Listed]:
        """Return a unit's part of every dimension."""
        binding = self.names[name]
        low = self.launch.depth(self.names[binding.base].scale)
        return shares(self.launch, binding.views, binding.shape, low, unit.rank)

    # --- regions and elements ---------------------------------------------------------------------

    def region(self, region: n.Region, unit: Unit, there: Unit) -> n.Region:
        """Return a region as one of its tensor or tile; ``there`` is the unit whose it is."""
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
            dims.append(self.dim(region, replace(dim, start=start, extent=extent), share, unit))
        return n.Region(self.named(region.source), tuple(dims))

    def dim(self, region: n.Region, dim: n.Dim, share: Cut | Listed, unit: Unit) -> n.Dim:
        """Return one dimension; ``share`` is its owner's part of the tensor's."""
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

    def element(self, name: str, index: tuple[Expr, ...], there: Unit) -> tuple[Expr, ...]:
        """Return an index of a name as one of its tensor or tile."""
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
    if left == ZERO:
        return right
    return simplify(binary("+", left, right)) if right.dtype == "int" else apply("+", left, right)


def without_views(program: Program) -> Program:
    """Return the Program that code is written from: after ``Normalise`` and ``ResolveViews``."""
    *_, last = steps(program, (Normalise(), ResolveViews()))
    return last.program
