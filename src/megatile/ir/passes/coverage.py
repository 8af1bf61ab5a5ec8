"""Arguments whose last rows or columns no unit reaches: a grid or a loop was rounded down.

T.Kernel(block=N // bN) as bx; T.copy(C[0, bx * bN], c)      N = 100, bN = 32: columns 96 to 99 stay
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from megatile.core.expr import Binary, Const, Expr, Symbol, known, linear, simplify
from megatile.core.placement import Replicate, Shard
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank, loads
from megatile.ir.launch import Launch
from megatile.ir.passes.pipeline import Finding
from megatile.ir.program import Binding, Program, bindings


class _Reach:
    """How far the values of expressions go in a launch."""

    def __init__(self, program: Program):
        self.launch: Launch = program.launch
        self.loops = {node.var: node for node in n.walk(program.body) if isinstance(node, n.Loop)}
        self.elementwise: set[str] = set()
        for node in n.walk(program.body):
            if isinstance(node, n.Parallel):
                zero, one = Const(0), Const(1)
                self.elementwise.update(node.vars)
                for var, extent in zip(node.vars, node.extents, strict=True):
                    self.loops[var] = n.Loop("serial", var, zero, extent, one)

    def most(self, expr: Expr) -> int | None:
        """Return the greatest value, or more; None if it is not known."""
        terms, total = linear(simplify(expr))
        for term, factor in terms.items():
            last = self._last(term) if factor > 0 else 0 if self._last(term) is not None else None
            if last is None:
                return None
            total += factor * last
        return total

    def _last(self, term: Expr) -> int | None:
        if isinstance(term, Coord):
            return self.launch.extents(term.scale)[term.axis] - 1
        if isinstance(term, Rank):
            return self.launch.count(term.scale, term.within) - 1
        if isinstance(term, Symbol) and term.name in self.loops:
            loop = self.loops[term.name]
            start, stop, step = known(simplify(loop.start)), self.most(loop.stop), known(simplify(loop.step))
            if stop is None or stop <= 0:
                return None
            if start is None or step is None or step <= 0:
                return stop - 1
            return start + max(stop - 1 - start, 0) // step * step
        if isinstance(term, Binary) and term.operator == "%":
            size = known(term.right)
            return None if size is None else size - 1
        return None

    def steps(self, dim: n.Dim) -> frozenset[tuple[Expr, int]]:
        """Return the units and the counters of loops that an index counts with, each with its step;
        elementwise loops are left out."""
        terms, _ = linear(simplify(dim.start))
        return frozenset(
            (term, factor)
            for term, factor in terms.items()
            if not (isinstance(term, Symbol) and term.name in self.elementwise)
        )

    def tiles(self, dim: n.Dim) -> bool:
        """Return whether the places of an access lie side by side: each step is as long as all within it."""
        terms, _ = linear(simplify(dim.start))
        size = 1 if dim.extent is None else self.most(dim.extent)
        if size is None or not terms:
            return False
        for factor, term in sorted(((f, t) for t, f in terms.items()), key=lambda one: one[0]):
            last = self._last(term)
            if last is None or (last and factor != size):
                return False
            size += factor * last
        return True


def unreached(program: Program, among: Container[str] | None = None) -> Iterator[Finding]:
    """Dimensions of arguments (those ``among`` these names) that are only read, or only written, up to less
    than their extent.

    Where the same steps reach the end of another dimension of that extent, nothing was rounded: the one is
    shifted against the other, or it leaves a border alone.
    """
    table, reach = bindings(program), _Reach(program)
    found: dict[str, list[tuple[str, str, n.Region, n.Node]]] = {p.name: [] for p in program.params}
    complete: set[tuple[frozenset[tuple[Expr, int]], int]] = set()
    for node in n.walk(program.body):
        for kind, region in _accesses(node):
            binding = table.get(region.source)
            if binding is not None and binding.base in found:
                found[binding.base].append((kind, region.source, region, node))
                for dim, one in enumerate(region.dims):
                    end = _end(reach, binding, region, dim)
                    if end is not None and end[0] >= end[1]:
                        complete.add((reach.steps(one), end[1]))
    for param in program.params:
        kinds = {kind for kind, *_ in found[param.name]}
        if len(kinds) != 1 or not all(isinstance(extent, int) for extent in param.shape):
            continue
        if among is not None and param.name not in among:
            continue
        for dim in range(len(param.shape)):
            ends = [_end(reach, table[source], region, dim) for _, source, region, _ in found[param.name]]
            if any(end is None for end in ends):
                continue
            last = max(end[0] for end in ends if end is not None)
            extent = max(end[1] for end in ends if end is not None)
            tiled = any(reach.tiles(region.dims[dim]) for _, _, region, _ in found[param.name])
            steps = {(reach.steps(region.dims[dim]), extent) for _, _, region, _ in found[param.name]}
            if tiled and 0 < last < extent and not steps & complete - {(frozenset(), extent)}:
                yield (
                    f"{_indices(last, extent)} of dimension {dim} of '{param.name}' is never "
                    f"{'read' if kinds == {'read'} else 'written'}",
                    found[param.name][-1][3].span,
                    "round grids and loops up: T.ceildiv(n, block), not n // block",
                )


def _indices(first: int, extent: int) -> str:
    return f"index {first}" if first == extent - 1 else f"each index from {first} to {extent - 1}"


def _accesses(node: n.Node) -> Iterator[tuple[str, n.Region]]:
    for kind, region in n.regions(node):
        yield ("read" if kind == "read" else "write"), region
    for expr in n.expressions(node):
        for load in loads(expr):
            yield "read", _element(load)


def _element(load: Load) -> n.Region:
    return n.Region(load.source, tuple(n.Dim(index) for index in load.index))


def _end(reach: _Reach, binding: Binding, region: n.Region, dim: int) -> tuple[int, int] | None:
    """Return where an access ends along a dimension, and the extent there; None if either is not known."""
    extent = _extent(reach.launch, binding, dim)
    if extent is None or region.along is not None or len(region.dims) <= dim:
        return None
    one = region.dims[dim]
    size = 1 if one.extent is None else reach.most(one.extent)
    start = reach.most(one.start)
    return None if start is None or size is None else (start + size, extent)


def _extent(launch: Launch, binding: Binding, dim: int) -> int | None:
    """Return what a unit sees of a dimension."""
    if len(binding.shape) <= dim:
        return None
    extent = binding.shape[dim]
    for view in binding.views:
        if isinstance(view.layout, Replicate):
            continue
        if not isinstance(view.layout, Shard) or view.layout.axis is not None:
            return None
        if view.layout.dim == dim:
            extent = math.ceil(extent / launch.count(view.scale))
    return extent
