"""Rules about serial loops: what they do one by one could be a single statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from megatile.core.expr import (
    Binary,
    Const,
    Expr,
    Symbol,
    known,
    linear,
    rebuild,
    simplify,
    substitute,
    symbols,
    trips,
    walk,
)
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.program import Binding, Program, bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

SUMS = {"+": "sum", "max": "max", "min": "min"}
SERIAL = ("serial", "unroll", "vectorized")
Rewrite = Callable[[n.Loop], "tuple[n.Node, ...] | None"]


@rule("serial loop")
def serial_elements(study: Study) -> Iterator[Finding]:
    """Elements are computed one after the other though none needs another."""
    yield from _finding(
        study, "serial loop", _parallel, "T.Parallel",
        "a serial loop over elements: every iteration is a command of its own",
        "no iteration of '{0}' needs what another computes", "for {0} in T.Parallel(…)",
    )  # fmt: skip


@rule("serial reduction")
def serial_sums(study: Study) -> Iterator[Finding]:
    """Elements are added up one after the other."""
    if study.lowered is not None:
        made = _reductions(study.lowered.source)
        yield from _finding(
            study, "serial loop", lambda loop: made.get(id(loop)), "one reduction",
            "a serial loop adds up elements one by one",
            "'{0}' counts elements that are added (or compared) in order; all threads but one wait",
            "T.reduce_sum (reduce_max, reduce_min) of the tile, instead of the loop over '{0}'",
        )  # fmt: skip


@rule("serial scan")
def serial_scans(study: Study) -> Iterator[Finding]:
    """Elements are added to the next ones, one after the other."""
    if study.lowered is not None:
        table = bindings(study.lowered.source)
        yield from _finding(
            study, "serial loop", lambda loop: _scan(loop, table), "T.cumsum",
            "a serial loop adds each element to the next",
            "'{0}' counts elements of running sums in order; all threads but a few wait",
            "T.cumsum of the tile, instead of the loop over '{0}'",
        )  # fmt: skip


def _scan(loop: n.Loop, table: Mapping[str, Binding]) -> tuple[n.Node, ...] | None:
    """Return the running sum that a loop ``for j: x[…, j + 1] = x[…, j + 1] + x[…, j]`` is."""
    node = loop.body[0] if len(loop.body) == 1 else None
    store = node.body[0] if isinstance(node, n.Parallel) and len(node.body) == 1 else node
    if loop.kind not in SERIAL or not isinstance(store, n.Store) or not isinstance(store.value, Binary):
        return None
    sides = (store.value.left, store.value.right)
    loads = [side for side in sides if isinstance(side, Load) and side.source == store.target]
    along = [d for d, i in enumerate(store.index) if loop.var in symbols(i)]
    if store.value.operator != "+" or len(loads) != 2 or len(along) != 1:
        return None
    steps = [known(simplify(store.index[along[0]] - side.index[along[0]])) for side in loads]
    indices = [store.index, *(side.index for side in loads)]
    others = {tuple(i for d, i in enumerate(index) if d != along[0]) for index in indices}
    if sorted(step or 0 for step in steps) != [0, 1] or len(others) != 1 or None in steps:
        return None
    bound = table[store.target]
    whole = n.whole(bound.base, bound.shape)
    return (n.Cumsum(whole, whole, along[0], span=store.span),) if bound.base == store.target else None


@rule("small copies")
def small_copies(study: Study) -> Iterator[Finding]:
    """A loop copies neighbouring parts one after the other."""
    for name, what, remote in (("small copies", "copy", False), ("small messages", "message", True)):
        yield from _finding(
            study, name, partial(_one_copy, remote=remote), f"one {what} of all parts",
            f"{name}: a loop moves neighbouring parts one by one",
            f"the parts that '{{0}}' counts lie side by side, and every {what} has its own start",
            "one T.copy of all of them, instead of the loop over '{0}'",
        )  # fmt: skip


def _finding(
    study: Study, name: str, rewrite: Rewrite, by: str, bottleneck: str, reason: str, step: str
) -> Iterator[Finding]:
    if study.lowered is None:
        return
    loops = [loop for loop in _loops(study.lowered.source) if rewrite(loop) is not None]
    if loops:
        yield from study.finding(
            name, study.program_ps(lambda program: _rewritten(program, rewrite)),
            f"program timed again with {by}", bottleneck=bottleneck, reason=reason.format(loops[0].var),
            step=step.format(loops[0].var), source=changes.source_line(loops[0]),
        )  # fmt: skip


def _loops(program: Program) -> Iterator[n.Loop]:
    """Yield the loops of a program, but for those in elementwise code."""
    return (m for m in n.walk(program.body, (n.Parallel,)) if isinstance(m, n.Loop))


def _rewritten(program: Program, rewrite: Rewrite) -> Program:
    """The program with loops replaced by statements, outer ones first."""

    made = ((loop, rewrite(loop)) for loop in _loops(program))
    return changes.replaced(program, {id(loop): new for loop, new in made if new is not None})


def _parallel(loop: n.Loop) -> tuple[n.Node, ...] | None:
    """A loop that only stores elements, each iteration its own, as elementwise code."""
    here, size = Symbol(loop.var), simplify(loop.stop - loop.start)
    nests = [m if isinstance(m, n.Parallel) else n.Parallel((), (), (m,), span=m.span) for m in loop.body]
    stores = [m for nest in nests for m in nest.body]
    if loop.kind not in SERIAL or known(loop.start) != 0 or not stores:
        return None
    if not all(isinstance(m, n.Store) for m in stores) or len({nest.extents for nest in nests}) > 1:
        return None
    targets = {m.target: m.index for m in stores}  # type: ignore[attr-defined]
    loads = [p for m in stores for e in n.expressions(m) for p in walk(e) if isinstance(p, Load)]
    own = all(here in m.index and m.index == targets[m.target] for m in stores)  # type: ignore[attr-defined]
    if not own or any(p.source in targets and p.index != targets[p.source] for p in loads):
        return None
    return tuple(replace(m, vars=(loop.var, *m.vars), extents=(size, *m.extents)) for m in _joined(nests))


def _joined(nests: list[n.Parallel]) -> Iterator[n.Parallel]:
    """Nests over no elements as one, others as they are."""
    single = [m for nest in nests if not nest.vars for m in nest.body]
    if single:
        yield replace(nests[0], vars=(), extents=(), body=tuple(single))
    yield from (nest for nest in nests if nest.vars)


def _reductions(program: Program) -> dict[int, tuple[n.Node, ...]]:
    """By loop ``for i: s = s + x[…, i, …]``, the reduction that it is; of a tensor, a copy goes before it."""
    table, tensors, made = (
        bindings(program),
        {p.name for p in program.params},
        dict[int, tuple[n.Node, ...]](),
    )
    for loop in n.each(n.Loop, program.body):
        store = _summed(loop)
        if not isinstance(store, n.Store) or loop.kind not in SERIAL or not isinstance(store.value, Binary):
            continue
        sides, into = (store.value.left, store.value.right), (store.target, store.index)
        total = [side for side in sides if isinstance(side, Load) and (side.source, side.index) == into]
        added = [side for side in sides if side not in total]
        if store.value.operator not in SUMS or len(total) != 1 or len(added) != 1:
            continue
        load = next((p for p in walk(added[0]) if isinstance(p, Load)), None)
        inside = any(loop.var in symbols(i) for i in store.index)
        along = [at for at, i in enumerate(load.index) if loop.var in symbols(i)] if load is not None else []
        if load is None or inside or len(along) != 1:
            continue
        size = simplify(loop.stop - loop.start)
        first = substitute(load.index[along[0]], {loop.var: loop.start})
        dims = tuple(n.Dim(first, size) if at == along[0] else n.Dim(i) for at, i in enumerate(load.index))
        source, before = n.Region(load.source, dims), tuple[n.Node, ...]()
        rounds = trips(loop)
        if table[load.source].base in tensors:
            length = len(rounds) if rounds is not None else table[load.source].shape[along[0]]
            name = f"{load.source}_part"
            tile = n.Alloc(name, (length,), table[load.source].dtype, "registers", program.launch.dispatch)
            part = n.Region(name, (n.Dim(Const(0), size),))
            before, source = (tile, n.Copy(part, source, span=store.span)), part
        to = n.Region(store.target, tuple(
            n.Dim(i, Const(1)) if at == len(store.index) - 1 else n.Dim(i) for at, i in enumerate(store.index)
        ))  # fmt: skip
        made[id(loop)] = (
            *before,
            n.Reduce(SUMS[store.value.operator], source, to, 0, False, span=store.span),
        )
    return made


def _summed(loop: n.Loop) -> n.Node | None:
    """The only statement of a loop; a copy of one element before it is put in its place."""
    if len(loop.body) == 1:
        return loop.body[0]
    if len(loop.body) != 2:
        return None
    copy, store = loop.body
    single = (
        isinstance(copy, n.Copy) and n.remote(copy) is None and all(known(e) == 1 for e in copy.to.extents)
    )
    if not single or not isinstance(copy, n.Copy) or not isinstance(store, n.Store):
        return None

    def change(part: Expr) -> Expr:
        if isinstance(part, Load) and part.source == copy.to.source:
            return Load(copy.source.source, tuple(d.start for d in copy.source.dims), part.dtype)
        return part

    return replace(store, value=rebuild(store.value, change))


def _one_copy(loop: n.Loop, remote: bool) -> tuple[n.Node, ...] | None:
    """A loop of copies of neighbouring parts as one copy each; conditions around them are the same in all
    rounds, and units that meet after each message meet once."""
    rounds = trips(loop)
    if loop.kind not in SERIAL or rounds is None or len(rounds) < 2 or rounds.step != 1:
        return None

    def joined(body: tuple[n.Node, ...]) -> tuple[n.Node, ...] | None:
        made = list[n.Node]()
        for node in body:
            if isinstance(node, n.If) and loop.var not in symbols(node.condition):
                sides = joined(node.body), joined(node.orelse)
                if sides[0] is None or sides[1] is None:
                    return None
                made.append(replace(node, body=sides[0], orelse=sides[1]))
                continue
            if remote and isinstance(node, n.Barrier):
                made.append(node)
                continue
            if not isinstance(node, n.Copy) or (n.remote(node) is not None) != remote:
                return None
            if any(e is not None and loop.var in symbols(e) for e in (node.dst, node.src)):
                return None
            to, source = (_joined_region(r, loop.var, rounds) for r in (node.to, node.source))
            if to is None or source is None:
                return None
            made.append(replace(node, to=to, source=source))
        return tuple(made)

    copies = any(isinstance(m, n.Copy) for m in n.walk(loop.body))
    return joined(loop.body) if copies else None


def _joined_region(region: n.Region, var: str, rounds: range) -> n.Region | None:
    """The region of all rounds of a loop, if it moves by its own length along one dimension."""
    dims, moving = list[n.Dim](), 0
    for dim in region.dims:
        if var not in symbols(dim.start):
            dims.append(dim)
            continue
        size = 1 if dim.extent is None else known(dim.extent)
        if size is None or linear(dim.start)[0].get(Symbol(var)) != size:
            return None
        start: Expr = substitute(dim.start, {var: Const(rounds.start)})
        dims.append(replace(dim, start=simplify(start), extent=Const(size * len(rounds))))
        moving += 1
    return replace(region, dims=tuple(dims)) if moving == 1 else None
