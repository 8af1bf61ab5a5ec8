"""Loops over elements that reach tensors in memory directly, with tiles between: for access in short rows."""

from __future__ import annotations

from math import prod

from megatile.core.expr import Const, Expr, Symbol, known, linear, rebuild, substitute, symbols, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.program import Binding, Program, bindings
from megatile.verdict import changes

PADDING = 1
"""Elements at the end of the rows of the tiles, so that columns lie in different banks."""


def in_tiles(program: Program) -> Program:
    """Return the program whose loops over elements work on tiles, copied before and after.

    ``Y[x + j, y + i] = X[y + i, x + j]`` → ``T.copy(a, X[y, x]); b[j, i] = a[i, j]; T.copy(Y[x, y], b)``.
    """
    table = bindings(program)
    tensors = {p.name for p in program.params}
    direct = {name for name, bound in table.items() if name in tensors or bound.base in tensors}
    loops = [
        loop for loop in n.each(n.Parallel, program.body) if all(isinstance(m, n.Store) for m in loop.body)
    ]
    made = {id(loop): new for loop in loops if (new := _staged(loop, direct, table, program)) is not None}
    return changes.replaced(program, made) if made else program


def _staged(
    loop: n.Parallel, direct: set[str], table: dict[str, Binding], program: Program
) -> tuple[n.Node, ...] | None:
    """Return the loop between copies; None where an element is not one of a box."""
    sizes = {v: known(e) or 0 for v, e in zip(loop.vars, loop.extents, strict=True)}
    stores = [m for m in loop.body if isinstance(m, n.Store)]
    loads = {e for m in stores for e in walk(m.value) if isinstance(e, Load) and e.source in direct}
    targets = [m for m in stores if m.target in direct]
    if not loads or not targets or {e.source for e in loads} & {m.target for m in targets}:
        return None
    before, after, taken = list[n.Node](), list[n.Node](), dict[Expr, Expr]()
    level = next((m.level for m in n.each(n.Alloc, program.body) if m.level != "l0"), "l1")
    for number, load in enumerate(sorted(loads, key=str)):
        found = _box(load.source, load.index, sizes)
        if found is None:
            return None
        region, index = found
        name, tile = _tile(f"in{number}", region)
        before += [_alloc(name, region, load.dtype, level, program), n.Copy(tile, region, span=loop.span)]
        taken[load] = Load(name, index, load.dtype)
    body = list[n.Node]()
    for number, store in enumerate(stores):
        value = rebuild(store.value, lambda e: taken.get(e, e))
        if store not in targets:
            body.append(n.Store(store.target, store.index, value, span=store.span))
            continue
        found = _box(store.target, store.index, sizes)
        if found is None:
            return None
        region, index = found
        name, tile = _tile(f"out{number}", region)
        before.append(_alloc(name, region, table[store.target].dtype, level, program))
        after.append(n.Copy(region, tile, span=store.span))
        body.append(n.Store(name, index, value, span=store.span))
    return (*before, n.with_bodies(loop, lambda _: tuple(body)), *after)


def _tile(name: str, region: n.Region) -> tuple[str, n.Region]:
    return name, n.whole(name, tuple(known(e) or 1 for e in region.extents))


def _alloc(name: str, region: n.Region, dtype: str, level: str, program: Program) -> n.Alloc:
    *rows, last = (known(e) or 1 for e in region.extents)
    return n.Alloc(name, (*rows, last + PADDING), dtype, level, program.launch.dispatch)


def _box(
    source: str, index: tuple[Expr, ...], sizes: dict[str, int]
) -> tuple[n.Region, tuple[Expr, ...]] | None:
    """Return the box that all elements ``source[index]`` of a loop make up, and the place of one in it."""
    dims, place = list[n.Dim](), list[Expr]()
    for expr in index:
        used = [v for v in sizes if v in symbols(expr)]
        if len(used) > 1 or any(linear(expr)[0].get(Symbol(v)) != 1 for v in used):
            return None
        start = substitute(expr, dict.fromkeys(used, 0))
        dims.append(n.Dim(start, Const(sizes[used[0]]) if used else None))
        place += [Symbol(v) for v in used]
    names = {s for e in place for s in symbols(e)}
    if len(names) != len(place) or not place or not prod(sizes[v] for v in names):
        return None
    return n.Region(source, tuple(dims)), tuple(place)
