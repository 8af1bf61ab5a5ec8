"""Changes of a Program before C is written: what is the same in every step of a loop is done before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

from megatile.core.expr import Const, Expr, Symbol, constant, linear, rebuild, symbols, trips, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load, loads
from megatile.ir.program import Program, base_name, bindings

HEAVY = {"exp", "exp2", "log", "log2", "tanh", "erf", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "/"}
MAX_TILE_EXTENT = 4096
"""Largest extent of a loop whose heavy operations are moved into a tile."""


def hoisted(program: Program) -> Program:
    """``for i, j in parallel: o[i, j] *= exp2(m[i])`` → ``for i in parallel: t[i] = exp2(m[i])`` before it.

    A function of some of the loop's variables only is computed once for each of their values, by vectors.
    """
    return replace(program, body=_Hoist(program).body(program.body, "launch"))


class _Hoist:
    def __init__(self, program: Program):
        self.names = set(bindings(program))
        self.count = 0

    def body(self, body: tuple[n.Node, ...], scale: str) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if isinstance(node, n.Parallel):
                result += self.nest(node, scale)
                continue
            inner = node.scale if isinstance(node, n.ScaleRegion) else scale
            result.append(n.with_bodies(node, partial(self.body, scale=inner)))
        return tuple(result)

    def nest(self, node: n.Parallel, scale: str) -> list[n.Node]:
        """Return the nest, and what stands before it."""
        one = node.body[0] if len(node.body) == 1 else None
        if node.in_step or scale == "launch" or len(node.vars) != 2 or not isinstance(one, n.Store):
            return [node]
        made: list[n.Node] = []
        known: dict[Expr, Expr] = {}
        value = self.value(one.value, node, one.target, scale, (made, known))
        return [*made, replace(node, body=(replace(one, value=value),))] if made else [node]

    def value(
        self,
        expr: Expr,
        node: n.Parallel,
        target: str,
        scale: str,
        out: tuple[list[n.Node], dict[Expr, Expr]],
    ) -> Expr:
        used = symbols(expr) & set(node.vars)
        heavy = getattr(expr, "operator", None) in HEAVY
        if heavy and len(used) == 1 and expr.dtype == "f32" and self._may(expr, node, target):
            return self._made(expr, node, next(iter(used)), scale, out)
        children = expr.children()
        if not children or isinstance(expr, Load):
            return expr
        return expr.rebuilt(*(self.value(c, node, target, scale, out) for c in children))

    def _may(self, expr: Expr, node: n.Parallel, target: str) -> bool:
        extents = [constant(e) for e in node.extents]
        return (
            all(e is not None and 0 < e <= MAX_TILE_EXTENT for e in extents)
            and all(load.source != target for load in loads(expr))
            and not any(getattr(p, "operator", None) == "select" for p in walk(expr))
        )

    def _made(
        self,
        expr: Expr,
        node: n.Parallel,
        variable: str,
        scale: str,
        out: tuple[list[n.Node], dict[Expr, Expr]],
    ) -> Expr:
        made, known = out
        if expr not in known:
            extent = node.extents[node.vars.index(variable)]
            name = f"once_{self.count}"
            while name in self.names:
                name += "_"
            self.count += 1
            self.names.add(name)
            index = Symbol(f"{name}_i")
            known[expr] = Load(name, (Symbol(variable),), "f32")
            inner = rebuild(expr, lambda p: index if p == Symbol(variable) else p)
            store = n.Store(name, (index,), inner, span=node.span)
            made.append(n.Alloc(name, (constant(extent) or 1,), "f32", "", scale, span=node.span))
            made.append(n.Parallel((index.name,), (extent,), (store,), span=node.span))
        return known[expr]


def flops(program: Program) -> int | None:
    """Return floating point operations of the program's products; None where a number of steps is not
    known."""

    def of(body: tuple[n.Node, ...], depth: int, times: int | None) -> Iterator[int | None]:
        for node in body:
            inner, count = depth, times
            if isinstance(node, n.Gemm):
                sizes = [constant(e) for e in (*node.a.extents[-2:], *node.c.extents[-2:])]
                factors = (2, times, sizes[0 if node.transpose_a else 1], *sizes[2:])
                yield None if None in factors else prod(factors)  # type: ignore[arg-type]
            elif isinstance(node, n.ScaleRegion):
                inner = program.launch.depth(node.scale)
                units = prod(s.count for s in program.launch.scales[depth:inner])
                count = None if times is None else times * units
            elif isinstance(node, n.Loop):
                rounds = trips(node) if node.kind != "bounded" else None
                count = None if times is None or rounds is None else times * len(rounds)
            for _, part in n.bodies(node):
                yield from of(part, inner, count)

    found = list(of(program.body, 0, 1))
    return None if None in found else sum(filter(None, found))


# --- tiles that are only other names --------------------------------------------------------------


def without_copies(program: Program) -> Program:
    """``copy(w, s); gemm(w, v, o)`` → ``gemm(s, v, o)``; the same for tiles of tensors that nothing writes.

    The copy must be the only write of the tile, and products after it, in the same list of statements, its
    only readers; what is copied must not change between. A part of a tensor stands for its tile only where
    rows follow each other and surely exist.
    """
    table = bindings(program)
    touched = [(kind, base_name(r.source)) for node in n.walk(program.body) for kind, r in n.regions(node)]
    uses = Counter(name for _, name in touched)
    written = Counter(name for kind, name in touched if kind != "read")
    params = {p.name: p for p in program.params}
    reached = set(filter(None, map(n.remote, n.walk(program.body))))

    def plain(region: n.Region) -> bool:
        return table[region.source].base == region.source

    def may(node: n.Copy, rest: tuple[n.Node, ...]) -> bool:
        to, source = node.to, node.source
        if node.dst is not None or node.src is not None or not plain(to) or not plain(source):
            return False
        if source.source in reached:  # others may change it once this unit has its copy
            return False
        shape = table[to.source].shape
        if (
            to != n.whole(to.source, shape)
            or len(shape) != 2
            or to.source in params
            or written[to.source] != 1
        ):
            return False
        if table[to.source].dtype != "f32" or table[source.source].dtype != "f32":
            return False
        readers = sum(
            r == to and isinstance(x, n.Gemm) for x in rest for kind, r in n.regions(x) if kind == "read"
        )
        if readers != uses[to.source] - 1 or any(isinstance(x, n.ScaleRegion) for x in n.walk(rest)):
            return False
        if any(
            kind != "read" and base_name(r.source) == source.source
            for x in n.walk(rest)
            for kind, r in n.regions(x)
        ):
            return False
        if source.source not in params:
            return (
                source == n.whole(source.source, shape)
                and table[source.source].scale == table[to.source].scale
            )
        return not written[source.source] and _is_dense(source, table[source.source].shape, shape)

    def body(nodes: tuple[n.Node, ...], inside: bool) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        changes: dict[n.Region, n.Region] = {}
        if [type(x) for x in nodes] == [n.Copy, n.Copy, n.Gemm]:  # which becomes one long product
            return nodes
        for at, node in enumerate(nodes):
            if isinstance(node, n.Copy) and inside and may(node, nodes[at + 1 :]):
                changes[node.to] = changes.get(node.source, node.source)
                continue
            if isinstance(node, n.Gemm):
                node = replace(node, a=changes.get(node.a, node.a), b=changes.get(node.b, node.b))
            result.append(n.with_bodies(node, partial(body, inside=inside or isinstance(node, n.Loop))))
        return tuple(result)

    return replace(program, body=body(program.body, False))


def _is_dense(region: n.Region, whole: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether rows lie one after the other in the tensor, in steps that the tensor's extent is a
    multiple of."""
    *leading, rows, columns = region.dims
    if any(d.extent is not None for d in leading):
        return False
    if columns.start != Const(0) or whole[-1] != shape[1] or whole[-2] % shape[0]:
        return False
    factors, rest = linear(rows.start)
    return all(f % shape[0] == 0 for f in (*factors.values(), rest))


# --- which tiles lie by columns -------------------------------------------------------------------


def by_columns(program: Program) -> set[str]:
    """Return tiles that are better held column by column.

    ``s = q @ keys.T`` in a loop over keys: with ``s`` by columns it is ``s.T = keys @ q.T``, where ``q.T`` is
    the same in every step and no keys are turned.
    """
    found: set[str] = set()
    for loop, gemm in _gemms(program.body, None):
        if loop is None or not gemm.transpose_b or gemm.transpose_a:
            continue
        if is_invariant(gemm.a, loop) and not is_invariant(gemm.b, loop):
            found.add(gemm.c.source)
    as_b = {g.b.source for _, g in _gemms(program.body, None)}
    for node in n.walk(program.body):
        if not isinstance(node, n.Copy) or node.dst is not None or node.to.source in as_b:
            continue
        if node.source.source in found and node.to.dims == node.source.dims:
            found.add(node.to.source)
    return found


def operands(program: Program) -> set[str]:
    """Return tiles that are only filled, copied, and multiplied."""
    others = {
        base_name(region.source)
        for node in n.walk(program.body)
        for kind, region in n.regions(node)
        if not isinstance(node, (n.Copy, n.Fill)) and not (isinstance(node, n.Gemm) and kind == "read")
    }
    return {region.source for _, g in _gemms(program.body, None) for region in (g.a, g.b)} - others


def _gemms(body: tuple[n.Node, ...], loop: n.Loop | None) -> Iterator[tuple[n.Loop | None, n.Gemm]]:
    """Yield every product, with the innermost loop around it."""
    for node in body:
        if isinstance(node, n.Gemm):
            yield loop, node
        inner = node if isinstance(node, n.Loop) else loop
        for _, part in n.bodies(node):
            yield from _gemms(part, inner)


def is_invariant(region: n.Region, loop: n.Loop) -> bool:
    """Return whether a region is the same, with the same content, in every step of a loop."""
    changed = {loop.var}
    for node in n.walk(loop.body):
        changed |= {getattr(node, "var", ""), getattr(node, "name", ""), getattr(node, "result", "") or ""}
        for kind, touched in n.regions(node):
            if kind != "read" and base_name(touched.source) == base_name(region.source):
                return False
        if isinstance(node, (n.Reshape, n.ScaleRegion, n.Collective, n.Wait, n.Barrier)):
            return False
    if any(symbols(e) & changed for e in region.expressions()):
        return False
    return not any(isinstance(p, Load) for e in region.expressions() for p in walk(e))
