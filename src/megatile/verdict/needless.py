"""Rules about work without which the result is the same: masked, repeated, unread, copied between tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from megatile.core.expr import (
    Binary,
    Call,
    Const,
    Expr,
    Select,
    Symbol,
    binary,
    known,
    linear,
    substitute,
    symbols,
    walk,
)
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.program import Program, bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

Body = tuple[n.Node, ...]
NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
LOWEST = -1e4
"""Values from here down stand for minus infinity in masks."""


# masks


@rule("masked work")
def masked_work(study: Study) -> Iterator[Finding]:
    """Find tiles that are loaded and computed, and then masked out."""
    if study.lowered is None:
        return
    found = list(masks(study.lowered.source))
    if found:
        owner, guard, parallel = found[0]
        where = f"iterations of '{owner.var}'" if isinstance(owner, n.Loop) else "blocks"
        yield from study.finding(
            "masked work", study.program_ps(without_masked), f"program timed again without {where} that "
            "are masked out",
            bottleneck=f"masked work: {where} are computed and then masked out",
            reason=f"the mask keeps elements only where {guard.text()}",
            step=f"leave out the others: {_bound_text(owner, guard)}",
            source=changes.source_line(parallel),
        )  # fmt: skip


def _bound_text(owner: n.Node, guard: Expr) -> str:
    if isinstance(owner, n.Loop):
        return (
            f"end (or begin) the loop over '{owner.var}' where {guard.text()} does, or `if` around its body"
        )
    return f"a smaller grid, or `if {guard.text()}:` around the block"


def masks(program: Program) -> Iterator[tuple[n.Node, Expr, n.Parallel]]:
    """Loops and regions of blocks, each with the condition under which a mask inside keeps any element."""

    def visit(body: Body, around: tuple[n.Node, ...]) -> Iterator[tuple[n.Node, Expr, n.Parallel]]:
        for node in body:
            if isinstance(node, n.Parallel):
                for guard in _guards(node):
                    owner = _owner(guard, around)
                    if owner is not None:
                        yield owner, guard, node
            elif isinstance(node, (n.Let, n.ReadScalar)):
                around = (*around, node)
            for _, inner in n.bodies(node):
                yield from visit(inner, (*around, node))

    yield from visit(program.body, ())


def _owner(guard: Expr, around: tuple[n.Node, ...]) -> n.Node | None:
    """Return the innermost loop whose index, or a name of whose body, is in a condition, or the region; None
    if the condition needs names that are not known there."""
    names = symbols(guard)
    loops = [node for node in around if isinstance(node, n.Loop)]
    inner = [
        loop for loop in loops
        if names & {loop.var, *(m.name for m in loop.body if isinstance(m, (n.Let, n.ReadScalar)))}
    ]  # fmt: skip
    regions = [node for node in around if isinstance(node, n.ScaleRegion)]
    owner = inner[-1] if inner else regions[-1] if regions else None
    own = set(map(id, getattr(owner, "body", ())))
    end = next((at for at, node in enumerate(around) if node is owner), 0)
    before = (node for at, node in enumerate(around) if at < end or id(node) in own)
    known_names = {node.name for node in before if isinstance(node, (n.Let, n.ReadScalar))}
    return owner if names <= {loop.var for loop in loops} | known_names else None


def _guards(node: n.Parallel) -> Iterator[Expr]:
    for store in node.body:
        if isinstance(store, n.Store) and isinstance(value := _added(store), Select):
            kept = _kept_where(value)
        elif isinstance(store, n.If) and not store.orelse and all(map(_sets_lowest, store.body)):
            kept = Call("not", (store.condition,), "bool")
        else:
            kept = None
        guard = (
            _possible(kept, True, dict(zip(node.vars, node.extents, strict=True)))
            if kept is not None
            else None
        )
        if guard is not None:
            yield guard


def _added(store: n.Store) -> Expr:
    """Return what a store adds to its target; of another store, its value."""
    value = store.value
    if isinstance(value, Binary) and value.operator == "+":
        sides = (value.left, value.right)
        others = [
            x for x in sides if not isinstance(x, Load) or (x.source, x.index) != (store.target, store.index)
        ]
        return others[0] if len(others) == 1 else value
    return value


def _sets_lowest(node: n.Node) -> bool:
    return isinstance(node, n.Store) and isinstance(node.value, Const) and _is_nothing(node.value)


def _is_nothing(value: Expr) -> bool:
    return isinstance(value, Const) and (value.value == 0 or value.value <= LOWEST)


def _kept_where(value: Select) -> Expr | None:
    """The condition under which a choice is not the constant that stands for nothing."""
    nothing = [_is_nothing(part) for part in (value.then, value.otherwise)]
    if all(nothing):
        lower = [part.value <= LOWEST for part in (value.then, value.otherwise)]  # type: ignore[attr-defined]
        nothing = lower if lower[0] != lower[1] else [False, False]
    if nothing[0] == nothing[1]:
        return None
    return value.condition if nothing[1] else Call("not", (value.condition,), "bool")


def _possible(condition: Expr, wanted: bool, extents: dict[str, Expr]) -> Expr | None:
    """What must hold for a condition to be true (or false) of any element; None: nothing is known."""
    if isinstance(condition, Call) and condition.operator == "not":
        return _possible(condition.args[0], not wanted, extents)
    if not isinstance(condition, Binary):
        return None
    if condition.operator in (("and", "&") if wanted else ("or", "|")):
        parts = [_possible(side, wanted, extents) for side in (condition.left, condition.right)]
        known_parts = [part for part in parts if part is not None]
        if len(known_parts) == 2:
            return Binary("and", known_parts[0], known_parts[1], "bool")
        return known_parts[0] if known_parts else None
    if not symbols(condition) & extents.keys() and not any(isinstance(p, Load) for p in walk(condition)):
        return condition if wanted else Call("not", (condition,), "bool")
    operator = condition.operator if wanted else NEGATED.get(condition.operator, "")
    if operator not in NEGATED:
        return None
    terms, _ = linear(binary("-", condition.left, condition.right))
    extremes = dict[str, Expr]()
    for name, extent in extents.items():
        last, factor = known(extent), terms.get(Symbol(name), 0)
        if last is None:
            return None
        extremes[name] = Const(last - 1 if (factor > 0) == (operator in (">", ">=")) else 0)
    sides = [substitute(side, extremes) for side in (condition.left, condition.right)]
    if any(isinstance(part, Load) for side in sides for part in walk(side)):
        return None
    return Binary(operator, sides[0], sides[1], "bool")


def without_masked(program: Program) -> Program:
    """Return the program without iterations and blocks that are masked out."""
    guards: dict[int, Expr] = {}
    for owner, guard, _ in masks(program):
        guards[id(owner)] = (
            guard if id(owner) not in guards else Binary("or", guards[id(owner)], guard, "bool")
        )

    def change(body: Body) -> Body:
        result = []
        for node in body:
            new = n.with_bodies(node, change)
            if id(node) in guards and isinstance(new, (n.Loop, n.ScaleRegion)):
                names, body = symbols(guards[id(node)]), new.body
                needed = [at for at, m in enumerate(body) if getattr(m, "name", "") in names]
                first = max(needed, default=-1) + 1
                kept = [m for at, m in enumerate(body) if at < first or isinstance(m, (n.Alloc, n.View))]
                rest = tuple(m for m in body[first:] if not isinstance(m, (n.Alloc, n.View)))
                new = replace(new, body=(*kept, n.If(guards[id(node)], rest, span=node.span)))
            result.append(new)
        return tuple(result)

    return replace(program, body=change(program.body)) if guards else program


# what loops repeat


PURE = (n.Copy, n.Fill, n.Reduce, n.Cumsum, n.Gemm, n.Parallel)
SENT = ("allgather", "gather_view", "all_to_all", "reduce_scatter", "scatter_view")
"""Collectives whose result depends on what units give alone, and on nothing that was in its place."""


def invariant(program: Program) -> Iterator[tuple[n.Loop, n.Node]]:
    """Statements that give the same in every iteration of a loop."""
    table, tensors = bindings(program), {p.name for p in program.params}
    for loop in n.each(n.Loop, program.body):
        inside = list(n.walk(loop.body))
        changing = {loop.var} | {m.name for m in inside if isinstance(m, (n.Let, n.ReadScalar))}
        changing |= {m.var for m in inside if isinstance(m, n.Loop)}
        written = [table[r.source].base for m in inside for access, r in n.regions(m) if access != "read"]
        before: set[str] = set()
        for node in loop.body:
            accesses = list(_accesses(node))
            to = {table[r.source].base for access, r in accesses if access != "read"}
            reads = {table[r.source].base for access, r in accesses if access == "read"}
            again = isinstance(node, n.Collective) and node.kind == "broadcast"  # in place: twice is once
            reads -= to if again else set()
            alone = all(
                written.count(name) == sum(table[r.source].base == name for a, r in accesses if a != "read")
                for name in to
            )
            own = {v for m in n.walk((node,)) if isinstance(m, n.Parallel) for v in m.vars}
            if (
                isinstance(node, (*PURE, n.Collective))
                and _starts_anew(node)
                and to
                and alone
                and not to & ((set() if again else tensors) | before | reads)
                and not reads & set(written)
                and not any(symbols(e) & (changing - own) for m in n.walk((node,)) for e in n.expressions(m))
                and not any(_gathers(e) for m in n.walk((node,)) for e in n.expressions(m))
            ):
                yield loop, node
                written = [name for name in written if name not in to]
            else:
                before |= reads


def _accesses(node: n.Node) -> Iterator[tuple[str, n.Region]]:
    for m in n.walk((node,)):
        yield from n.regions(m)


def _starts_anew(node: n.Node) -> bool:
    """Whether a statement gives all of what it writes, from nothing that was there."""
    if isinstance(node, n.Parallel):
        return all(isinstance(m, n.Store) for m in node.body)
    if isinstance(node, n.Copy):
        return n.remote(node) is None
    if isinstance(node, n.Collective):
        return node.kind in (*SENT, "broadcast")
    return not isinstance(node, (n.Reduce, n.Gemm)) or bool(node.clear)


def _gathers(expr: Expr) -> bool:
    """Whether a place depends on data."""
    return any(
        isinstance(p, Load) and any(isinstance(q, Load) for i in p.index for q in walk(i)) for p in walk(expr)
    )


def hoisted(program: Program) -> Program:
    """What every iteration repeats, before its loop."""
    for _ in range(3):
        moved, gone = dict[int, list[n.Node]](), set[int]()
        for loop, node in invariant(program):
            moved.setdefault(id(loop), []).append(node)
            gone.add(id(node))
        if not gone:
            break

        def change(body: Body, moved: dict[int, list[n.Node]] = moved, gone: set[int] = gone) -> Body:
            result: list[n.Node] = []
            for node in body:
                result += moved.get(id(node), [])
                if id(node) not in gone:
                    result.append(n.with_bodies(node, change))
            return tuple(result)

        program = replace(program, body=change(program.body))
    return program


@rule("repeated work")
def repeated_work(study: Study) -> Iterator[Finding]:
    """Every iteration of a loop computes the same."""
    if study.lowered is None:
        return
    source = study.lowered.source
    table, tensors = bindings(source), {p.name for p in source.params}
    found = [
        (loop, node)
        for loop, node in invariant(source)
        if not isinstance(node, n.Fill)
        and not (isinstance(node, n.Copy) and table[node.source.source].base in tensors)
    ]
    if found:
        loop, node = found[0]
        name = next(r.source for access, r in _accesses(node) if access != "read")
        makes = "communicate" if isinstance(node, n.Collective) else "compute"
        yield from study.finding(
            "repeated work", study.program_ps(hoisted), "program timed again with that before the loop",
            bottleneck=f"repeated work: every iteration {makes}s '{name}' again, and it is always the same",
            reason=f"nothing in it depends on '{loop.var}'",
            step=f"{makes} '{name}' once, before the loop",
            source=changes.source_line(node) or changes.source_line(next(iter(n.walk((node,))), None)),
        )  # fmt: skip


# what nobody reads, and copies of copies


@rule("unread results")
def unread(study: Study) -> Iterator[Finding]:
    """Tiles that are filled and never read."""
    if study.lowered is None:
        return
    found = _unread(study.lowered.source)
    if found:
        names = ", ".join(f"'{r.source}'" for a, r in _accesses(found[0]) if a != "read")
        yield from study.finding(
            "unread results", study.program_ps(_without_unread), "program timed again without them",
            bottleneck=f"unread results: nothing reads {names}",
            reason=f"{len(found)} statement{'s' if len(found) > 1 else ''} write tiles that no other reads",
            step="leave them out", source=changes.source_line(found[0]),
        )  # fmt: skip


def _unread(program: Program) -> list[n.Node]:
    table, found = bindings(program), list[n.Node]()
    tiles = {m.name for m in n.each(n.Alloc, program.body) if not m.flag}
    statements = [m for m in n.walk(program.body, (n.Parallel,)) if isinstance(m, PURE)]
    others = [m for m in n.walk(program.body, (n.Parallel,)) if not isinstance(m, PURE)]
    while True:
        left = [m for m in statements if not any(m is f for f in found)]
        read: set[str] = {table[r.source].base for m in others for a, r in n.regions(m)}
        for m in left:
            mine = {table[r.source].base for a, r in _accesses(m) if a != "read"}
            read |= {table[r.source].base for a, r in _accesses(m) if a == "read"} - mine
        more = [
            m
            for m in left
            if all(table[r.source].base in tiles - read for a, r in _accesses(m) if a != "read")
            and n.remote(m) is None
            and not any(isinstance(x, n.Atomic) for x in n.walk((m,)))
        ]
        if not more:
            return found
        found += more


def _without_unread(program: Program) -> Program:
    return changes.without(program, _unread(program))


@rule("needless copies")
def needless_copies(study: Study) -> Iterator[Finding]:
    """A tile is copied to another, and both stay the same."""
    if study.lowered is None:
        return
    far = study.hda.memory("l2").name
    found = _plain_copies(study.lowered.source, far)
    if found:
        yield from study.finding(
            "needless copies", study.program_ps(partial(_without_copies, far=far)),
            "program timed again with the tile itself in place of its copies",
            bottleneck=f"needless copies: '{found[0].to.source}' is '{found[0].source.source}', copied",
            reason=f"{len(found)} cop{'y' if len(found) == 1 else 'ies'} between tiles that stay alike",
            step=f"use '{found[0].source.source}' itself", source=changes.source_line(found[0]),
        )  # fmt: skip


def _plain_copies(program: Program, far: str) -> list[n.Copy]:
    """Copies of whole tiles of one type to tiles that nothing else writes, of tiles not written after; and
    of tensors that are only read to tiles in the same memory."""
    table, tensors = bindings(program), {p.name for p in program.params}
    beside = {m.name for m in n.each(n.Alloc, program.body) if m.level == far}
    constant = tensors - {table[name].base for name in n.written(program.body)}
    order = list(n.walk(program.body))
    writes = [
        (at, table[r.source].base) for at, m in enumerate(order) for a, r in n.regions(m) if a != "read"
    ]
    loops = [set(map(id, n.walk(loop.body))) for loop in n.each(n.Loop, program.body)]
    found, sources = list[n.Copy](), set[str]()
    for at, copy in enumerate(order):
        if not isinstance(copy, n.Copy) or n.remote(copy) is not None:
            continue
        to, source = table[copy.to.source], table[copy.source.source]
        same = (to.shape, to.dtype, to.scale) == (source.shape, source.dtype, source.scale)
        staged = source.base in constant and to.base in beside and to.dtype == source.dtype
        places = [[(d.start, d.extent) for d in r.dims] for r in (copy.to, copy.source)]
        whole = copy.to == n.whole(to.base, to.shape) and places[0] == places[1]
        if not whole or not (staged or (same and source.base not in tensors)):
            continue
        if to.base in tensors or to.base in sources:
            continue
        once = sum(name == to.base for _, name in writes) == 1
        mine = [i for i, name in writes if name == source.base]
        together = all((id(order[i]) in loop) == (id(copy) in loop) for i in mine for loop in loops)
        if once and together and all(i < at for i in mine):
            found.append(copy)
            sources.add(source.base)
    return found


def _without_copies(program: Program, far: str) -> Program:
    copies = _plain_copies(program, far)
    names: dict[str, str] = {}
    for copy in copies:  # in their order: a copy of a copy is the first tile
        names[copy.to.source] = names.get(copy.source.source, copy.source.source)
    unused = [m for m in n.each(n.Alloc, program.body) if m.name in names]
    left = changes.without(program, [*copies, *unused])
    return replace(left, body=changes.renamed(left.body, names)) if copies else program
