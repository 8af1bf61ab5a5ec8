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
from megatile.ir.expr import Coord, Load
from megatile.ir.passes.driver import rewrite_expressions
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
    loops = [loop for loop in n.each(n.Loop, study.lowered.source.body) if rewrite(loop) is not None]
    if loops:
        yield from study.finding(
            name, study.program_ps(lambda program: _rewritten(program, rewrite)),
            f"program timed again with {by}", bottleneck=bottleneck, reason=reason.format(loops[0].var),
            step=step.format(loops[0].var), source=changes.source_line(loops[0]),
        )  # fmt: skip


def _rewritten(program: Program, rewrite: Rewrite) -> Program:
    """The program with loops replaced by statements, outer ones first."""

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            new = rewrite(node) if isinstance(node, n.Loop) else None
            result += new if new is not None else (n.with_bodies(node, change),)
        return tuple(result)

    return replace(program, body=change(program.body))


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
    """A loop of copies of neighbouring parts as one copy each."""
    rounds = trips(loop)
    if loop.kind not in SERIAL or rounds is None or len(rounds) < 2 or rounds.step != 1:
        return None
    copies = []
    for node in loop.body:
        if not isinstance(node, n.Copy) or (n.remote(node) is not None) != remote:
            return None
        if any(e is not None and loop.var in symbols(e) for e in (node.dst, node.src)):
            return None
        to, source = (_joined_region(r, loop.var, rounds) for r in (node.to, node.source))
        if to is None or source is None:
            return None
        copies.append(replace(node, to=to, source=source))
    return tuple(copies) or None


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


def independent_parts(program: Program) -> n.Loop | None:
    """The serial loop of a block whose iterations each store parts of tensors of their own and begin their
    tiles anew, if there is one."""
    table, tensors = bindings(program), {p.name for p in program.params}
    for region in n.each(n.ScaleRegion, program.body):
        if region.scale != program.launch.dispatch or len(program.launch.extents(region.scale)) > 2:
            continue
        loops = [
            m for m in region.body if isinstance(m, n.Loop) and m.kind in SERIAL and trips(m) is not None
        ]
        if len(loops) != 1 or region.body[-1] is not loops[0]:
            continue
        stores = [m for m in n.walk(loops[0].body) if _writes(m, table) & tensors]
        own = all(any(loops[0].var in symbols(e) for e in n.expressions(m)) for m in stores)
        if stores and own and not _carries(loops[0], table, tensors):
            return loops[0]
    return None


def independent_turns(program: Program) -> n.Loop | None:
    """Return the serial loop around all regions of blocks whose iterations touch nothing that another one
    writes: every tensor that is written has an index of its own in each. None: there is no such loop."""
    loops = [m for m in program.body if isinstance(m, n.Loop)]
    regions = [m for m in n.each(n.ScaleRegion, program.body) if m.scale == program.launch.dispatch]
    if len(loops) != 1 or loops[0].kind not in SERIAL or trips(loops[0]) is None or not regions:
        return None
    if [m for m in loops[0].body if m in regions] != regions or len(loops[0].body) != len(regions):
        return None
    if len(program.launch.extents(program.launch.dispatch)) > 2 or any(
        map(_meets_others, n.walk(program.body))
    ):
        return None
    table, tensors = bindings(program), {p.name for p in program.params}
    touched: dict[str, list[n.Region]] = {}
    written = set[str]()
    for node in n.walk(loops[0].body):
        for kind, region in n.regions(node):
            base = table[region.source].base
            touched.setdefault(base, []).append(region)
            written |= {base} if kind != "read" else set()
    return loops[0] if all(_own(touched[t], t, loops[0].var) for t in written & tensors) else None


def _meets_others(node: n.Node) -> bool:
    return isinstance(node, (n.Collective, n.Barrier, n.Signal, n.Wait)) or n.remote(node) is not None


def _own(regions: list[n.Region], tensor: str, var: str) -> bool:
    """Whether regions all have one index of a dimension, and that is another for each value of a variable."""
    if any(region.source != tensor for region in regions):
        return False
    each = [
        {
            (at, dim.start)
            for at, dim in enumerate(region.dims)
            if dim.extent is None or known(dim.extent) == 1
        }
        for region in regions
    ]
    return any(linear(start)[0].get(Symbol(var)) for _, start in set.intersection(*each))


@rule("serial loop of phases")
def turns_of_phases(study: Study) -> Iterator[Finding]:
    """A loop runs phases of blocks for one problem after the other, though none needs another."""
    loop = independent_turns(study.lowered.source) if study.lowered is not None else None
    rounds = trips(loop) if loop is not None else None
    if loop is not None and rounds is not None:
        yield from study.finding(
            "serial loop", study.program_ps(parts_in_grid),
            f"program timed again with blocks for each '{loop.var}'",
            bottleneck=f"a serial loop around phases: {len(rounds)} times, all blocks wait for each other",
            reason=f"the iterations of '{loop.var}' need nothing of each other, and the units have "
            "no other blocks while the last ones of a phase run",
            step=f"a dimension of the grid in place of the loop over '{loop.var}'",
            source=changes.source_line(loop),
        )  # fmt: skip


def _writes(node: n.Node, table: Mapping[str, Binding]) -> set[str]:
    """The tensors and tiles that a statement writes."""
    return {table[r.source].base for kind, r in n.regions(node) if kind != "read"}


def _carries(loop: n.Loop, table: Mapping[str, Binding], tensors: set[str]) -> bool:
    """Whether an iteration reads a tile that the one before has left."""
    written = {table[name].base for name in n.written(loop.body)} - tensors
    begun: set[str] = set()
    for node in n.walk(loop.body):
        anew = isinstance(node, (n.Fill, n.Copy)) or bool(getattr(node, "clear", False))
        reads = {
            table[r.source].base
            for kind, r in n.regions(node)
            if kind == "read" or (not anew and kind == "update")
        }
        if reads & (written - begun):
            return True
        begun |= _writes(node, table)
    return False


def scan(program: Program) -> n.Loop | None:
    """Return the loop of blocks whose rounds store a part of a result and leave something to the next."""
    table, tensors = bindings(program), {p.name for p in program.params}
    for region in n.each(n.ScaleRegion, program.body):
        for loop in region.body if region.scale == program.launch.dispatch else ():
            if isinstance(loop, n.Loop) and _carries(loop, table, tensors):
                stores = [r for m in n.walk(loop.body) for kind, r in n.regions(m) if kind == "write"
                          and table[r.source].base in tensors]  # fmt: skip
                if any(loop.var in symbols(e) for r in stores for e in r.expressions()):
                    return loop
    return None


def parts_in_grid(program: Program) -> Program:
    """The iterations of such a loop (of parts, or of turns) as blocks of their own."""
    loop = independent_parts(program) or independent_turns(program)
    rounds = trips(loop) if loop is not None else None
    if loop is None or rounds is None:
        return program
    launch = program.launch
    at = launch.depth(launch.dispatch) - 1
    extents = launch.scales[at].extents
    here = Coord(launch.dispatch, len(extents)) * rounds.step + rounds.start

    def moved(node: n.Node) -> n.Node:
        inner = n.with_bodies(node, lambda body: tuple(map(moved, body)))
        return rewrite_expressions(inner, lambda e: substitute(e, {loop.var: here}))

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            result += map(moved, loop.body) if node is loop else [n.with_bodies(node, change)]
        return tuple(result)

    scale = replace(launch.scales[at], extents=(*extents, len(rounds)))
    scales = (*launch.scales[:at], scale, *launch.scales[at + 1 :])
    return replace(program, launch=replace(launch, scales=scales), body=change(program.body))
