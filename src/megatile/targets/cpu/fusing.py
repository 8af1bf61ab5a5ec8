"""An elementwise loop and a reduction of what it writes, in one pass over the elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megatile.core.dtypes import accumulator
from megatile.core.expr import Symbol, applied, constant
from megatile.ir import nodes as n
from megatile.ir.expr import Load, loads
from megatile.targets.common.elements import NOTHING, Value, held, kind
from megatile.targets.common.scope import Axis, Box, Scope, offset
from megatile.targets.cpu.lanes import Lanes, lane_of
from megatile.targets.cpu.moving import rows
from megatile.targets.cpu.reducing import gathered, in_lanes, of_lane, together

MAX_BETWEEN = 2
"""Statements between a loop and the reduction that it is fused with."""


@dataclass
class Fused:
    """A loop, the statements between that have nothing to do with it, and the reduction."""

    nest: n.Parallel
    between: tuple[n.Node, ...]
    reduce: n.Reduce
    lane: str

    @property
    def used(self) -> int:
        return len(self.between) + 2


def recognised(scope: Scope, body: tuple[n.Node, ...], at: int) -> Fused | None:
    """Return the loop at a place of a body, if a reduction of its result follows."""
    nest = body[at]
    if not isinstance(nest, n.Parallel) or len(nest.vars) != 2 or len(nest.body) != 1 or nest.in_step:
        return None
    store, extents = nest.body[0], [constant(e) for e in nest.extents]
    if not isinstance(store, n.Store) or store.index != tuple(map(Symbol, nest.vars)) or None in extents:
        return None
    after = next(
        (i for i in range(at + 1, min(at + 2 + MAX_BETWEEN, len(body))) if isinstance(body[i], n.Reduce)),
        None,
    )
    if after is None:
        return None
    reduce, between = body[after], body[at + 1 : after]
    assert isinstance(reduce, n.Reduce)
    storage = scope.gen.storages.storage(store.target)
    if reduce.source != n.whole(store.target, storage.shape) or list(storage.shape) != extents:
        return None
    if held(storage.dtype, storage.wide) != "f32" or storage.home != "instance" or not _apart(nest, between):
        return None
    target = scope.gen.storages.storage(reduce.to.source)
    reads = {r.source for _, r in n.regions(store)} - {store.target}
    if reduce.to.source in reads or kind(target.dtype) != "f" or target.copies != 1:
        return None
    if len(reduce.to.extents) != 1 or 1 in extents:
        return None
    lane = lane_of(scope, nest)
    return None if lane is None else Fused(nest, between, reduce, lane)


def _apart(nest: n.Parallel, between: tuple[n.Node, ...]) -> bool:
    """Return whether statements may be done before a loop that stands before them."""
    mine = {(kind, r.source) for one in nest.body for kind, r in n.regions(one)}
    written = {name for kind, name in mine if kind != "read"}
    for node in between:
        if not isinstance(node, (n.Copy, n.Fill)) or getattr(node, "dst", None) or getattr(node, "src", None):
            return False
        for kind_, region in n.regions(node):
            if region.source in written or (kind_ != "read" and region.source in {name for _, name in mine}):
                return False
    return True


@dataclass
class Scaled:
    """``for i, j: c[i, j] = c[i, j] * s[i]``, then ``c += a @ b``: the product begins with scaled rows."""

    gemm: n.Gemm
    factors: str
    used: int = 2


def scaled(scope: Scope, body: tuple[n.Node, ...], at: int) -> Scaled | None:
    """Return a loop that multiplies the rows of a tile, before a product that adds to it."""
    nest, gemm = body[at], body[at + 1] if at + 1 < len(body) else None
    if not isinstance(nest, n.Parallel) or len(nest.body) != 1 or len(nest.vars) != 2 or nest.in_step:
        return None
    store = nest.body[0]
    if not isinstance(gemm, n.Gemm) or gemm.clear or not isinstance(store, n.Store):
        return None
    i, j = map(Symbol, nest.vars)
    factors = [Load(load.source, (i,), "f32") for load in loads(store.value) if load.source != store.target]
    tile = Load(store.target, (i, j), "f32")
    if store.index != (i, j) or store.value not in [applied("*", (tile, f), "f32") for f in factors]:
        return None
    factor = factors[0]
    storages = scope.gen.storages
    storage, numbers = storages.storage(store.target), storages.storage(factor.source)
    shape = tuple(constant(e) for e in nest.extents)
    if gemm.c != n.whole(store.target, storage.shape) or shape != storage.shape or storage.strides[-1] != 1:
        return None
    plain = all(storages.is_plain(name, "instance") for name in (store.target, factor.source))
    sums = accumulator(storages.storage(gemm.a.source).dtype)
    if not plain or numbers.shape != shape[:1] or {storage.dtype, numbers.dtype, sums} != {"f32"}:
        return None
    if store.target in (gemm.a.source, gemm.b.source):
        return None
    return Scaled(gemm, scope.box(n.whole(factor.source, numbers.shape)).pointer)


def fused(scope: Scope, found: Fused) -> None:
    """The two in one pass: lanes are results, or parts of one result."""
    nest, node = found.nest, found.reduce
    scope.gen.statements(scope, found.between)
    kept = nest.vars[1 - node.dim]
    with scope.text.block():
        to = scope.box(node.to)
        if found.lane == kept and to.axes[0].stride == 1:
            _across(scope, found, to)
        elif found.lane != kept:
            _along(scope, found, to)
        else:
            raise AssertionError("a reduction into a column")


def _along(scope: Scope, found: Fused, to: Box) -> None:
    nest, node = found.nest, found.reduce
    kept = nest.vars[1 - node.dim]
    rows_, length = (constant(nest.extents[nest.vars.index(v)]) for v in (kept, found.lane))
    name, acc = scope.gen.name(kept), scope.gen.fresh("acc")
    with scope.loop(name, "0", str(rows_)), scope.known(kept, Value(name, "int"), (0, (rows_ or 1) - 1)):
        scope.text.add(f"vf {acc} = vset({NOTHING[node.op]});")

        def body(index: str, count: str | None) -> None:
            limits = scope.limits(nest.extents[nest.vars.index(found.lane)])
            with scope.text.block(), scope.known(found.lane, Value(index, "int"), limits):
                value = _values(scope, found, index, count)
                value = value if count is None else f"first({value}, {count}, {NOTHING[node.op]})"
                scope.text.add(f"{acc} = {together(node.op, acc, of_lane(node.op, value))};")

        rows(scope, "0", str(length), length, body)
        gathered(scope, node, to, f"{to.pointer}{offset(to.axes[0], name)}", acc)


def _values(scope: Scope, found: Fused, index: str, count: str | None) -> str:
    """Return what the loop stores for a vector of iterations."""
    lanes = Lanes(scope, found.lane, index, count)
    lanes.statements(found.nest.body)
    return lanes.last


def _across(scope: Scope, found: Fused, to: Box) -> None:
    nest, node = found.nest, found.reduce
    other = nest.vars[node.dim]
    length, steps = (constant(nest.extents[nest.vars.index(v)]) for v in (found.lane, other))
    limits = scope.limits(nest.extents[nest.vars.index(found.lane)])

    def body(index: str, count: str | None) -> None:
        def value(i: str) -> str:
            with scope.known(other, Value(f"({i})", "int"), (0, (steps or 1) - 1)):
                return _values(scope, found, index, count)

        place = f"{to.pointer}{offset(Axis(to.axes[0].extent, 1), index)}"
        with scope.known(found.lane, Value(index, "int"), limits):
            in_lanes(scope, node, str(steps), math.gcd(steps or 1, 4), value, to.storage, place, count)

    rows(scope, "0", str(length), length, body)
