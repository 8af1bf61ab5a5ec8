"""Rule about expressions that are computed again for the same values: in every round of a loop, for every
column, or in two places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from megatile.core.expr import Call, Const, Expr, Symbol, known, rebuild, symbols, trips, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.passes.driver import rewrite_expressions
from megatile.ir.program import Binding, Program, bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

DIVISIONS = ("/", "//", "%")
CHEAP = ("cast", "not", "abs", "max", "min", "floor", "ceil", "round", "bitcast")
"""Functions that take as little time as an addition."""
Body = tuple[n.Node, ...]


@rule("repeated expressions")
def repeated_expressions(study: Study) -> Iterator[Finding]:
    """Find functions and divisions in elementwise code whose value is known from before."""
    found = list(repeated(study.lowered.source)) if study.lowered is not None else []
    if found:
        nest, value, why = found[0]
        yield from study.finding(
            "repeated work", study.program_ps(computed_once), bound=True,
            how="program timed again with their values taken from tiles",
            bottleneck=f"repeated work: '{value.text()}' is computed again, {why}",
            reason=f"{len(found)} function{'s' * (len(found) > 1)} or divisions give what they gave before",
            step="compute it once into a tile, and take it from there",
            source=changes.source_line(next((m for m in n.walk((nest,)) if m.span is not None), None)),
        )  # fmt: skip


def repeated(program: Program) -> Iterator[tuple[n.Parallel, Expr, str]]:
    """Yield elementwise code with an expression whose value is known from before, and why."""
    table, done = bindings(program), dict[Expr, tuple[str, ...]]()

    def bases(body: Body) -> set[str]:
        return {table[name].base for name in n.written(body)}

    def visit(body: Body, loops: tuple[n.Loop, ...]) -> Iterator[tuple[n.Parallel, Expr, str]]:
        for node in body:
            if isinstance(node, n.Parallel):
                values = [v for m in node.body if isinstance(m, n.Store) for v in _largest(m.value)]
                for value in dict.fromkeys(values):
                    why = _why(node, value, loops)
                    if why:
                        yield node, value, why
                for value in dict.fromkeys(values):
                    done[_named(node, value)] = node.vars
            else:
                inside = (*loops, node) if isinstance(node, n.Loop) else loops
                for _, inner in n.bodies(node):
                    yield from visit(inner, inside)
            changed = bases((node,))
            for value in [v for v in done if _read(v, table) & changed]:
                del done[value]

    def _why(node: n.Parallel, value: Expr, loops: tuple[n.Loop, ...]) -> str:
        if _named(node, value) in done:
            return "as in the code before"
        free = [v for v, e in zip(node.vars, node.extents, strict=True) if known(e) != 1]
        idle = [v for v in free if v not in symbols(value)]
        if idle and set(free) & symbols(value):
            return f"for every '{idle[0]}'"
        loop = loops[-1] if loops else None
        if loop is not None and _repeats(loop):
            made = {m.name for m in n.walk(loop.body) if isinstance(m, (n.Let, n.ReadScalar))}
            fixed = not symbols(value) & (made | {loop.var}) and not _read(value, table) & bases(loop.body)
            return f"in every round of '{loop.var}'" if fixed else ""
        return ""

    yield from visit(program.body, ())


def _repeats(loop: n.Loop) -> bool:
    rounds = trips(loop)
    return rounds is None or len(rounds) > 1


def _largest(value: Expr) -> Iterator[Expr]:
    """Yield the parts of a value that are functions or divisions, outer ones first."""
    function = isinstance(value, Call) and value.operator not in CHEAP
    costly = function or getattr(value, "operator", "") in DIVISIONS
    if costly and any(isinstance(p, (Load, Symbol)) for p in walk(value)):
        yield value
    if not isinstance(value, Load):
        for child in value.children():
            yield from _largest(child)


def _named(node: n.Parallel, value: Expr) -> Expr:
    """Return a value with the names of variables that they have by their order."""
    names: dict[Expr, Expr] = {Symbol(v): Symbol(f"var {at}") for at, v in enumerate(node.vars)}
    sizes = {Symbol(v): known(e) for v, e in zip(node.vars, node.extents, strict=True)}
    named = rebuild(value, lambda p: names.get(p, p))
    return named + prod(size or 1 for v, size in sizes.items() if v.name in symbols(value))


def _read(value: Expr, table: Mapping[str, Binding]) -> set[str]:
    return {table[p.source].base for p in walk(value) if isinstance(p, Load)}


def computed_once(program: Program) -> Program:
    """Return the program that takes such values from tiles (which nothing fills: the time is what counts)."""
    values: dict[int, dict[Expr, Expr]] = {}
    allocs: list[n.Node] = []
    for number, (nest, value, _) in enumerate(repeated(program)):
        sizes = dict(zip(nest.vars, nest.extents, strict=True))
        used = [v for v in nest.vars if v in symbols(value)] or list(nest.vars[:1])
        shape = tuple(known(sizes[v]) or 1 for v in used)
        name = f"value{number}"
        allocs.append(n.Alloc(name, shape, value.dtype, "registers", program.launch.dispatch, span=nest.span))
        index = tuple(Symbol(v) if v in symbols(value) else Const(0) for v in used)
        values.setdefault(id(nest), {})[value] = Load(name, index, value.dtype)

    def change(body: Body) -> Body:
        made = []
        for node in body:
            mine = values.get(id(node))
            new = n.with_bodies(node, change)
            if mine is not None:
                new = n.with_bodies(new, lambda inner: tuple(_taken(m, mine) for m in inner))  # noqa: B023
            if isinstance(new, n.ScaleRegion) and new.scale == program.launch.dispatch:
                names = {p.source for m in n.walk(new.body) for e in n.expressions(m) for p in walk(e)
                         if isinstance(p, Load)}  # fmt: skip
                mine_too = [a for a in allocs if a.name in names]  # type: ignore[attr-defined]
                new = replace(new, body=(*mine_too, *new.body))
            made.append(new)
        return tuple(made)

    return replace(program, body=change(program.body)) if values else program


def _taken(node: n.Node, values: dict[Expr, Expr]) -> n.Node:
    """Return a statement with values taken from tiles, the largest ones."""

    def taken(expr: Expr) -> Expr:
        children = expr.children()
        return values[expr] if expr in values else expr.rebuilt(*map(taken, children)) if children else expr

    return rewrite_expressions(node, taken)
