"""Rules about engines: products on the wrong one, operands wider than they need be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megatile.core.expr import Binary, Call, Expr, Symbol, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.program import Program, bindings
from megatile.verdict import changes, largest
from megatile.verdict.model import Finding, Kind
from megatile.verdict.study import Study, rule

MAX_NAMED = 3
"""Lines of vector work whose cost is said."""


@rule("wrong engine")
def products(study: Study) -> Iterator[Finding]:
    """A matrix product is done element by element."""
    if study.lowered is None or not any(e.kind == "tensor" for e in study.hda.engines):
        return
    found = list(products_by_hand(study.lowered.source))
    if found:
        yield from study.finding(
            "wrong engine", study.program_ps(with_products), "program timed again with T.gemm",
            bottleneck="wrong engine: a matrix product on the vector engines",
            reason=f"vector engines are busy {study.result.use('vector'):.0%}, tensor engines idle",
            step=f"T.gemm({found[0][1].a.source}, {found[0][1].b.source}, {found[0][1].c.source})",
            source=changes.source_line(found[0][1]),
        )  # fmt: skip


@rule("transposed by hand")
def transposed(study: Study) -> Iterator[Finding]:
    """Find tiles that are turned element by element and are then only operands of products."""
    if study.lowered is None:
        return
    found = turned_tiles(study.lowered.source)
    if found:
        turned, (node, source) = next(iter(found.items()))
        yield from study.finding(
            "transposed by hand", study.program_ps(with_turned_operands),
            "program timed again with products that take the tile as it lies",
            bottleneck=f"a transpose by hand: '{turned}' is '{source}', turned element by element",
            reason=f"'{turned}' is read by products alone, and these can take '{source}' transposed",
            step=f"T.gemm of '{source}' with transpose_A=True or transpose_B=True, without '{turned}'",
            source=changes.source_line(node),
        )  # fmt: skip


def turned_tiles(program: Program) -> dict[str, tuple[n.Parallel, str]]:
    """Tiles that are another one of the same type, transposed by elementwise code, and whole operands of
    products alone: by name the code and the other tile."""
    table, found = bindings(program), dict[str, tuple[n.Parallel, str]]()
    nodes = list(n.walk(program.body))
    for node in nodes:
        store = node.body[0] if isinstance(node, n.Parallel) and len(node.body) == 1 else None
        if not isinstance(node, n.Parallel) or not isinstance(store, n.Store) or len(node.vars) != 2:
            continue
        value, rows, columns = store.value, *(Symbol(v) for v in node.vars)
        if not isinstance(value, Load) or (store.index, value.index) not in (
            ((rows, columns), (columns, rows)), ((columns, rows), (rows, columns))
        ):  # fmt: skip
            continue
        name, source = table[store.target], table[value.source]
        others = [m for m in nodes if m is not node and m is not store
                  and any(table[r.source].base == name.base for _, r in n.regions(m))]  # fmt: skip
        products = [m for m in others if isinstance(m, n.Gemm) and table[m.c.source].base != name.base]
        same = name.shape == source.shape[::-1] and name.dtype == source.dtype and source.base == value.source
        if same and products and len(products) == len(others):
            found[name.base] = node, source.base
    return found


def with_turned_operands(program: Program) -> Program:
    """Return the program whose products read the tiles transposed, without the elementwise transposes."""
    found, table = turned_tiles(program), bindings(program)

    def change(node: n.Node) -> n.Node | None:
        if isinstance(node, n.Gemm):
            for side, word in (("a", "transpose_a"), ("b", "transpose_b")):
                name = table[getattr(node, side).source].base
                if name in found:
                    other = found[name][1]
                    turned: dict[str, Any] = {
                        side: n.whole(other, table[other].shape),
                        word: not getattr(node, word),
                    }
                    node = replace(node, **turned)
        mine = isinstance(node, n.Alloc) and node.name in found
        return None if mine or any(node == code for code, _ in found.values()) else node

    return replace(program, body=rewrite_nodes(program.body, change)) if found else program


@rule("wide operands", Kind.INEXACT)
def wide(study: Study) -> Iterator[Finding]:
    """A product has f32 operands where f16 would do."""
    if study.lowered is None:
        return
    program, gemm = changes.wide_products(study.lowered.source)
    if gemm is not None:
        yield from study.finding(
            "wide operands", study.program_ps(lambda _: program), "program timed again with f16 operands",
            bottleneck="wide operands: a product of f32 where tensor engines are faster in f16",
            reason="f32 operands are slower in the engines, and twice as many bytes to load",
            step='operands in "f16" or "bf16", accumulated in "f32", if the accuracy allows',
            source=changes.source_line(gemm),
        )  # fmt: skip


@rule("widened operands")
def widened(study: Study) -> Iterator[Finding]:
    """Operands of a product are converted though tensor engines take them as they are."""
    if study.lowered is None:
        return
    names, table = changes.widened(study.lowered.source), bindings(study.lowered.source)
    tensor = [e for e in study.hda.engines if e.kind == "tensor"]
    if names and all(any(e.rate(table[name].dtype) for e in tensor) for name in names.values()):
        one, other = next(iter(names.items()))
        yield from study.finding(
            "widened operands", study.program_ps(changes.narrow_products),
            f"program timed again with products of {table[other].dtype} tiles",
            bottleneck=f"widened operands: '{one}' is '{other}' converted to {table[one].dtype}",
            reason=f"tensor engines multiply {table[other].dtype} themselves, faster, and without the copies",
            step=f"T.gemm of '{other}' itself: {table[other].dtype} operands",
            source=next((changes.source_line(c) for c in n.each(n.Copy, study.lowered.source.body)
                         if c.to.source == one), ""),
        )  # fmt: skip


@rule("operands loaded wider")
def loaded_wider(study: Study) -> Iterator[Finding]:
    """Operands of a product are converted on loading, though tensor engines take them as they are."""
    if study.lowered is None:
        return
    program = study.lowered.source
    types, table = changes.loaded_wider(program), bindings(program)
    tensor = [e for e in study.hda.engines if e.kind == "tensor"]
    if types and all(any(e.rate(kind) for e in tensor) for kind in types.values()):
        one, kind = next(iter(types.items()))
        allocs = (m for m in n.each(n.Alloc, program.body) if m.name == one)
        yield from study.finding(
            "widened operands", study.program_ps(lambda p: changes.with_types(p, types)),
            f"program timed again with tiles of {kind}",
            bottleneck=f"widened operands: '{one}' holds {kind} as {table[one].dtype}",
            reason=f"tensor engines multiply {kind} themselves, faster, and tiles take less room",
            step=f'"{kind}" as the type of {" and ".join(map(repr, types))}',
            source=next((changes.source_line(m) for m in allocs), ""),
        )  # fmt: skip


@rule("vector work", Kind.ADVICE)
def special(study: Study) -> Iterator[Finding]:
    """Vector work, not products, fills the time."""
    if "vector" not in study.result.busy or study.result.use("vector") < 0.5 or study.share("vector") < 0.3:
        return
    if study.lowered is not None and next(products_by_hand(study.lowered.source), None) is not None:
        return
    lines = sorted(largest.without_lines(study, ("vector", "scalar")), key=lambda line: line.time_ps)
    costly, works = _arithmetic(study), study.lowered is None
    lines = [x for x in lines if works or x.source in costly]
    if lines:
        fewer = "; no division, fewer special functions" if works or costly[lines[0].source] else ""
        costs = ", ".join(f"{_number(x)}: {1 - x.time_ps / study.base_ps:.0%}" for x in lines[:MAX_NAMED])
        yield from study.finding(
            "vector work", lines[0].time_ps, f"Plan timed again without line {_number(lines[0])}", bound=True,
            bottleneck="vector work limits the time",
            reason=f"vector engines are busy {study.result.use('vector'):.0%}; without these lines the time "
            f"would be less by ({costs})",
            step=f"fewer operations in line {_number(lines[0])}: what can go after the loop, or be done once "
            f"for a row instead of for each element{fewer}",
            source=lines[0].source,
        )  # fmt: skip


def _arithmetic(study: Study) -> dict[str, bool]:
    """Return the lines that compute elements, or reduce them, and whether they divide or call functions;
    those that only move elements, and products, could do no less."""
    found = dict[str, bool]()
    for node in n.walk(study.lowered.source.body) if study.lowered is not None else ():
        values = [m.value for m in n.walk((node,)) if isinstance(m, n.Store)]
        parts = [p for value in values for p in _outside(value)] if isinstance(node, n.Parallel) else []
        if parts or isinstance(node, (n.Reduce, n.Cumsum)):
            costly = any(isinstance(p, Call) or getattr(p, "operator", "") in ("/", "//", "%") for p in parts)
            line = changes.source_line(node)
            found[line] = costly or found.get(line, False)
    return found


def _outside(value: Expr) -> Iterator[Expr]:
    """Yield the operations of a value, but those that say where an element is."""
    if not isinstance(value, Load):
        inner = value.children()
        if inner and getattr(value, "operator", "") != "cast":
            yield value
        for child in inner:
            yield from _outside(child)


def _number(line: largest.Line) -> str:
    return line.source.rpartition(":")[2]


def products_by_hand(program: Program) -> Iterator[tuple[n.Node, n.Gemm]]:
    """Yield ``for q: for i, j in parallel: c[i, j] += a[i, q] * b[q, j]``, or the loop inside of that over
    elements, with the product that each is."""
    table = bindings(program)
    for outer in n.walk(program.body, (n.Parallel,)):
        body = outer.body if isinstance(outer, (n.Loop, n.Parallel)) else ()
        within = [m for m in body if not isinstance(m, (n.Hint, n.Barrier))]
        pair: tuple[n.Node, ...] = (outer, within[0]) if len(within) == 1 else ()
        loop = next((m for m in pair if isinstance(m, n.Loop)), None)
        inner = next((m for m in pair if isinstance(m, n.Parallel)), None)
        innermost: tuple[n.Node, ...] = getattr(within[0], "body", ()) if pair else ()
        if loop is None or inner is None or len(innermost) != 1 or len(inner.vars) != 2:
            continue
        store = innermost[0]
        rows, columns = (Symbol(v) for v in inner.vars)
        if not isinstance(store, n.Store) or store.index != (rows, columns):
            continue
        loads = [part for part in walk(store.value) if isinstance(part, Load)]
        factors = [one for one in loads if one.source != store.target]
        multiplies = any(getattr(part, "operator", "") == "*" for part in walk(store.value))
        if len(factors) != 2 or len(loads) != 3 or not multiplies:
            continue
        step = Symbol(loop.var)
        by_row = next((f for f in factors if f.index in ((rows, step), (step, rows))), None)
        by_column = next((f for f in factors if f.index in ((step, columns), (columns, step))), None)
        if by_row is None or by_column is None:
            continue
        left, right, total = (
            n.whole(name, table[name].shape) for name in (by_row.source, by_column.source, store.target)
        )
        turned = by_row.index[0] == step, by_column.index[0] == columns
        yield outer, n.Gemm(left, right, total, *turned, span=store.span)
    yield from _products_by_sums(program)


def _products_by_sums(program: Program) -> Iterator[tuple[n.Node, n.Gemm]]:
    """Yield ``for j: for i, q in parallel: p[i, q] = a[i, q] * b[j, q]; reduce_sum(p, s, dim=1);
    for i in parallel: c[i, j] = s[i]``, with the product that it is."""
    table = bindings(program)
    for loop in n.each(n.Loop, program.body):
        body = [m for m in loop.body if not isinstance(m, n.Hint)]
        nests = [m for m in body if isinstance(m, n.Parallel)]
        stores = [m.body[0] for m in nests if len(m.body) == 1 and isinstance(m.body[0], n.Store)]
        reduce = body[1] if len(body) == 3 else None
        if not isinstance(reduce, n.Reduce) or [body[0], body[2]] != nests or len(stores) != 2:
            continue
        part, store = (m for m in stores if isinstance(m, n.Store))
        if len(nests[0].vars) != 2 or len(nests[1].vars) != 1:
            continue
        step, row, along = (Symbol(v) for v in (loop.var, *nests[0].vars))
        place = tuple(row if e == Symbol(nests[1].vars[0]) else e for e in store.index)
        factors = [p for p in walk(part.value) if isinstance(p, Load)]
        sums = reduce.op == "sum" and reduce.clear and reduce.dim % len(reduce.source.dims) == 1
        taken = any(isinstance(p, Load) and p.source == reduce.to.source for p in walk(store.value))
        times = isinstance(part.value, Binary) and part.value.operator == "*" and len(factors) == 2
        if not (sums and taken and times) or reduce.source.source != part.target or len(place) != 2:
            continue
        left, right = (next((f for f in factors if set(f.index) == {e, along}), None) for e in place)
        if left is not None and right is not None and part.index == (row, along) and step in place:
            a, b, c = (n.whole(name, table[name].shape) for name in (left.source, right.source, store.target))
            yield loop, n.Gemm(a, b, c, left.index[0] == along, right.index[0] != along, span=part.span)


def with_products(program: Program) -> Program:
    """Return the program that computes such products with `T.gemm`."""
    made = {id(loop): (gemm,) for loop, gemm in products_by_hand(program)}
    return changes.replaced(program, made) if made else program
